"""Base of the data sources of request-based destinations."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .service import RequestService
    from .sink import RequestSink


class RequestDataSource(PenstockDataSource):
    """Sends rows in requests. See `PenstockDataSource`."""

    readers = "what the service offers"
    service: ClassVar[str]
    """`module:name` of the `RequestService`, which is loaded when a sink is needed."""

    def sink(self) -> RequestSink:
        from ..plug_ins import load

        service: RequestService = load(self.service)
        return service.sink(self.options)
