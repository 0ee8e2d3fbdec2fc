"""The data source `penstock.http`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base_source import PenstockDataSource

if TYPE_CHECKING:
    from ..requests.sink import RequestSink


class HttpDataSource(PenstockDataSource):
    """HTTP endpoints. See `PenstockDataSource`."""

    readers = "what the service offers"

    @classmethod
    def name(cls) -> str:
        return "penstock.http"

    def sink(self) -> RequestSink:
        from .options import HttpOptions, require_client

        require_client()
        from .sink import sink_of

        return sink_of(HttpOptions.parse(self.options))
