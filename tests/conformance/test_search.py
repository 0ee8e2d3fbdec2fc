"""OpenSearch and Elasticsearch pass the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.opensearch import OpenSearchServer, elasticsearch_proxy
from tests.conformance.harnesses import ElasticsearchHarness, OpenSearchHarness
from tests.support.lossy_requests import ProxyOf

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.slow
class TestOpenSearch(DestinationConformance):
    """Rows with an id are there once, however often they are sent. Each test loses the first requests or
    responses with rows.
    """

    @pytest.fixture
    def harness(
        self, tmp_path: Path, opensearch: OpenSearchServer, proxy_of: ProxyOf
    ) -> Iterator[DestinationHarness]:
        harness = OpenSearchHarness(tmp_path, opensearch, proxy_of(opensearch.url)).lossy()
        yield harness
        harness.drop()  # a node has at most 1000 shards


@pytest.mark.campaign
class TestElasticsearch(DestinationConformance):
    """By the library of Elasticsearch."""

    @pytest.fixture(scope="class")
    def url(self, opensearch: OpenSearchServer, proxy_of: ProxyOf) -> Iterator[str]:
        with elasticsearch_proxy(proxy_of(opensearch.url).url) as translator:
            yield translator.url

    @pytest.fixture
    def harness(
        self, tmp_path: Path, opensearch: OpenSearchServer, proxy_of: ProxyOf, url: str
    ) -> Iterator[DestinationHarness]:
        harness = ElasticsearchHarness(tmp_path, opensearch, proxy_of(opensearch.url), url).lossy()
        yield harness
        harness.drop()
