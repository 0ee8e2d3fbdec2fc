"""The data sources of OpenSearch and Elasticsearch."""

from __future__ import annotations

from ..requests.source import RequestDataSource


class OpenSearchDataSource(RequestDataSource):
    """OpenSearch indexes. See `PenstockDataSource`."""

    format = "penstock.opensearch"
    readers = "the search API of OpenSearch"
    service = "penstock.datasource.search.opensearch:SERVICE"


class ElasticsearchDataSource(RequestDataSource):
    """Elasticsearch indexes. See `PenstockDataSource`."""

    format = "penstock.elasticsearch"
    readers = "the search API of Elasticsearch"
    service = "penstock.datasource.search.elasticsearch:SERVICE"
