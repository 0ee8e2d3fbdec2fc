"""The data sources of OpenSearch and Elasticsearch."""

from __future__ import annotations

from ..requests.source import RequestDataSource


class OpenSearchDataSource(RequestDataSource):
    """OpenSearch indexes. See `PenstockDataSource`."""

    readers = "the search API of OpenSearch"
    service = "penstock.datasource.search.opensearch:SERVICE"

    @classmethod
    def name(cls) -> str:
        return "penstock.opensearch"


class ElasticsearchDataSource(RequestDataSource):
    """Elasticsearch indexes. See `PenstockDataSource`."""

    readers = "the search API of Elasticsearch"
    service = "penstock.datasource.search.elasticsearch:SERVICE"

    @classmethod
    def name(cls) -> str:
        return "penstock.elasticsearch"
