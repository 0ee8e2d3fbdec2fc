"""The data source `penstock.http`."""

from __future__ import annotations

from ..requests.source import RequestDataSource


class HttpDataSource(RequestDataSource):
    """HTTP endpoints. See `PenstockDataSource`."""

    service = "penstock.datasource.http.sink:SERVICE"

    @classmethod
    def name(cls) -> str:
        return "penstock.http"
