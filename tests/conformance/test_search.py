"""OpenSearch and Elasticsearch pass the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.lossy_proxy import LossyProxy
from servers.opensearch import OpenSearchServer, elasticsearch_proxy
from tests.conformance.harnesses import ElasticsearchHarness, OpenSearchHarness
from tests.support.lossy_requests import quiet_proxy

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.fixture(scope="module")
def proxy(opensearch: OpenSearchServer) -> Iterator[LossyProxy]:
    with quiet_proxy(opensearch.url) as started:
        yield started


@pytest.mark.slow
class TestOpenSearch(DestinationConformance):
    """Rows with an id are there once, however often they are sent. Each test loses the first requests or
    responses with rows.
    """

    @pytest.fixture
    def harness(
        self, tmp_path: Path, opensearch: OpenSearchServer, proxy: LossyProxy
    ) -> Iterator[DestinationHarness]:
        harness = OpenSearchHarness(tmp_path, opensearch, proxy).lossy()
        yield harness
        harness.drop()  # a node has at most 1000 shards


@pytest.mark.campaign
class TestElasticsearch(DestinationConformance):
    """By the library of Elasticsearch."""

    @pytest.fixture(scope="class")
    def url(self, proxy: LossyProxy) -> Iterator[str]:
        with elasticsearch_proxy(proxy.url) as translator:
            yield translator.url

    @pytest.fixture
    def harness(
        self, tmp_path: Path, opensearch: OpenSearchServer, proxy: LossyProxy, url: str
    ) -> Iterator[DestinationHarness]:
        harness = ElasticsearchHarness(tmp_path, opensearch, proxy, url).lossy()
        yield harness
        harness.drop()
