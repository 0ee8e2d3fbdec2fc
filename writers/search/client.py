"""What the clients of OpenSearch and Elasticsearch have in common. Each has a module of its own."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ..requests.acknowledgements import results_of_items
from ..requests.entry import Entry
from ..requests.limits import Limits
from ..requests.results import Failure, Result
from .checks import CHECK_S, check_index
from .results import Operation, result_of_item

READ_S_MORE = 5.0
"""The writer ends a request before the client does."""
SHOWN = ("errors", "items.*.status", "items.*.error.type", "items.*.error.reason", "items.*.error.caused_by")
"""The fields of a response that are read. The service leaves out the others."""


@dataclass(frozen=True, slots=True)
class SearchTarget:
    """One index, alias or data stream. Pickled to the executors, with the credentials."""

    url: str
    index: str
    operation: Operation = "index"
    pipeline: str | None = None
    creates_index: bool = False
    basic_auth: tuple[str, str] | None = field(default=None, repr=False)
    """User and password."""
    api_key: str | None = field(default=None, repr=False)

    @property
    def headers(self) -> dict[str, str]:
        """The credentials, in UTF-8: the libraries encode them differently."""
        if self.basic_auth is not None:
            credentials = base64.b64encode(":".join(self.basic_auth).encode()).decode()
            return {"authorization": f"Basic {credentials}"}
        return {} if self.api_key is None else {"authorization": f"ApiKey {self.api_key}"}

    @property
    def host(self) -> dict[str, Any]:
        """Scheme, host, port and path of the URL. The libraries have other default ports than HTTP."""
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return {"scheme": parts.scheme, "host": parts.hostname, "port": port, "path": parts.path.rstrip("/")}


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
        operation = self._target.operation
        return results_of_items(response, "items", lambda item: result_of_item(item, operation))

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
