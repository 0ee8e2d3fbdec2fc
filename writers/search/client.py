"""What the clients of OpenSearch and Elasticsearch have in common. Each has a module of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ..requests.acknowledgements import UNACKNOWLEDGED, objects_in
from ..requests.entry import Entry
from ..requests.limits import Limits
from ..requests.results import Failure, Result
from .changes import operation_of
from .checks import CHECK_S, check_index
from .results import result_of_item
from .target import SearchTarget

READ_S_MORE = 5.0
"""The writer ends a request before the client does."""
SHOWN = (
    "errors",
    "items.*.status",
    "items.*.result",
    "items.*.error.type",
    "items.*.error.reason",
    "items.*.error.caused_by",
)
"""The fields of a response that are read. The service leaves out the others."""


class SearchClient(ABC):
    """See `Client` and `ErrorClassifier`. The payload of an entry is its action and its document, two lines.

    The retries of the library are off: the writer retries.

    Args:
        limits: those of the writer
    """

    def __init__(self, target: SearchTarget, limits: Limits) -> None:
        self._target = target
        self._limits = limits
        self._client: Any = None

    @abstractmethod
    def open(self, timeout_s: float) -> Any:
        """Return the client of the library, which connects with its first request."""

    @abstractmethod
    async def send(self, client: Any, body: bytes) -> Any:
        """Make one bulk request, and return the body of the response, with the fields `SHOWN`."""

    @abstractmethod
    def classify(self, error: Exception) -> Failure:
        """See `ErrorClassifier`."""

    async def submit(self, entries: Sequence[Entry[bytes]]) -> Failure | Sequence[Result]:
        if self._client is None:
            self._client = self.open(self._limits.request_timeout_s + READ_S_MORE)
        response = await self.send(self._client, b"".join([one.payload for one in entries]))
        items = objects_in(response, "items")
        if len(items) != len(entries):
            return [UNACKNOWLEDGED] * len(items)
        is_versioned = self._target.is_versioned
        return [
            result_of_item(item, operation_of(entry.payload), is_versioned=is_versioned)
            for item, entry in zip(items, entries, strict=True)
        ]

    async def check(self) -> None:
        """Raises as `check_index`."""
        client = self.open(CHECK_S)
        try:
            await check_index(client, self._target)
        finally:
            await client.close()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
