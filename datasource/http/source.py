"""The data source `penstock.http`."""

from __future__ import annotations

from ..requests.source import RequestDataSource


class HttpDataSource(RequestDataSource):
    """HTTP endpoints. See `PenstockDataSource`."""

    format = "penstock.http"
    service = "penstock.datasource.http.sink:SERVICE"
