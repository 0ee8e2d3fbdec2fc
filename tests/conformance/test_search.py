"""OpenSearch and Elasticsearch pass the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.opensearch import OpenSearchServer, elasticsearch_proxy
from tests.conformance.harnesses import ElasticsearchHarness, OpenSearchHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.slow
class TestOpenSearch(DestinationConformance):
    """Rows with an id are there once, however often they are sent."""

    @pytest.fixture
    def harness(self, tmp_path: Path, opensearch: OpenSearchServer) -> Iterator[DestinationHarness]:
        harness = OpenSearchHarness(tmp_path, opensearch)
        yield harness
        harness.drop()  # a node has at most 1000 shards


@pytest.mark.campaign
class TestElasticsearch(DestinationConformance):
    """By the library of Elasticsearch."""

    @pytest.fixture(scope="class")
    def url(self, opensearch: OpenSearchServer) -> Iterator[str]:
        with elasticsearch_proxy(opensearch.url) as proxy:
            yield proxy.url

    @pytest.fixture
    def harness(self, tmp_path: Path, opensearch: OpenSearchServer, url: str) -> Iterator[DestinationHarness]:
        harness = ElasticsearchHarness(tmp_path, opensearch, url)
        yield harness
        harness.drop()
