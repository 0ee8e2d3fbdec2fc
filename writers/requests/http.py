"""The client for HTTP services. Only this module knows aiohttp."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import aiohttp
from yarl import URL

from ...committers.errors import AccessRefusedError, ConfigurationError, RetryableError
from ...committers.redirects import is_redirect
from ...committers.texts.safe_text import one_line
from ...committers.texts.secrets import without_last_word
from .acknowledgements import CODE
from .client import classify_error
from .entry import Entry
from .http_answers import open_session
from .redirects import redirected
from .results import DELIVERED, Delivered, Failure, Fatal, Retry, Split
from .retry_after import retry_after_of

Body: TypeAlias = Literal["json_array", "ndjson", "row"]

_CONTENT_TYPES: dict[Body, str] = {
    "json_array": "application/json",
    "ndjson": "application/x-ndjson",
    "row": "application/json",
}
_SHOWN_BYTES = 1 << 16
"""What is read of an error's body, for the message."""
_BODY_BYTES_MAX = 1 << 20
_BODY_S = 5.0
"""Of a longer body, and of one that takes longer, the rest is not read, and the connection is closed."""
_ACKNOWLEDGED = frozenset(range(200, 206))
"""All rows are taken. Others below 300 speak of a part of them (206, 207, 208), or of another protocol."""
_GONE = frozenset((404, 410))
"""Of a DELETE: there is nothing to delete, for example because a lost answer was that of a success."""
_PAGE = re.compile(rb"(?:\xef\xbb\xbf)?\s*(<!doctype\s+html|<html)\b", re.IGNORECASE)
_RETRIED = frozenset((408, 425, 429))
_THROTTLED = frozenset((429, 503))
_FATAL = {
    401: "Check the credentials.",
    403: "Check the permissions of these credentials.",
    404: "Check the url.",
    405: "Check the method.",
    407: "Check the credentials for the proxy.",
    410: "Check the url.",
    415: "Check the body and the header Content-Type.",
}
"""What no other row would change, and the next step."""


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Where and how to send rows. Pickled to the executors."""

    url: str
    method: str = "POST"
    body: Body = "json_array"
    """All rows of a request as a JSON array or as one JSON object a line, or one row for each request: set
    `batch_entries_max` of the limits to 1 then.
    """
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Override those that the client sets, except the idempotency key. May contain secrets."""
    bearer_token: str | None = field(default=None, repr=False)
    basic_auth: tuple[str, str] | None = field(default=None, repr=False)
    """User and password."""
    connect_timeout_s: float = 10.0
    idempotency_header: str = "Idempotency-Key"

    def __post_init__(self) -> None:
        if self.bearer_token is not None and self.basic_auth is not None:
            raise ConfigurationError("Set a bearer token or a user with a password, not both.")

    def connect(self) -> None:
        """Open a connection to the server, send nothing, and close it.

        Raises:
            RetryableError: the server does not accept it.
        """
        url = URL(self.url)
        try:
            socket.create_connection((url.host or "", url.port or 0), self.connect_timeout_s).close()
        except OSError as error:
            raise RetryableError(
                f"No connection to {url.host}:{url.port} can be opened: {one_line(error)}. Check the url, "
                "and that the service can be reached from here."
            ) from error


@dataclass(frozen=True, slots=True)
class AddressedRow:
    """A row that is sent to a URL of its own."""

    url: str
    """Encoded, and sent as it is: the library would decode some characters of values, such as `;`."""
    body: bytes | None
    """None: the request has none."""
    deletes_with: str | None = None
    """The method of a row that deletes what is at the URL. None: it does not."""


class HttpClient:
    """See `Client`. The payload of an entry is its row as JSON, without line breaks.

    With one row for each request, it can be an `AddressedRow`.

    A request has an `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header): the id of its entry, or a
    hash of the ids of its entries. A service that honours it recognizes a request that arrives twice. Failed
    entries can be sent again in another company, and thus under another key: only with one row for each
    request is the key that of a row.
    """

    def __init__(self, target: HttpTarget, connections: int) -> None:
        """
        Args:
            connections: as many as there may be requests in flight
        """
        self._target = target
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def submit(self, entries: Sequence[Entry[bytes | AddressedRow]]) -> Failure | Sequence[Delivered]:
        """The service takes all rows of a request or none: its status is the acknowledgement of each one."""
        target, first = self._target, entries[0].payload
        deletes_with = first.deletes_with if isinstance(first, AddressedRow) else None
        if self._session is None:
            self._session = self._open()
        async with self._session.request(
            deletes_with or target.method,
            URL(first.url, encoded=True) if isinstance(first, AddressedRow) else target.url,
            data=_body(target.body, entries),
            headers={target.idempotency_header: _idempotency_key(entries)},
            allow_redirects=False,  # redirects may turn a POST into a GET
        ) as response:
            start = await _start_of_body(response)
            is_gone = deletes_with == "DELETE" and response.status in _GONE and not _PAGE.match(start)
            if response.status in _ACKNOWLEDGED or is_gone:
                return _unacknowledged(response.status, start) or [DELIVERED] * len(entries)
            return _refusal(response, _text_of(start))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def classify(self, error: Exception) -> Failure:
        """A request that was cut off, also in the middle of its response, is retried."""
        code, message = type(error).__name__, str(error)
        if isinstance(error, (aiohttp.ClientSSLError, aiohttp.InvalidURL)):
            return Fatal(code, message, ConfigurationError)
        if isinstance(error, (aiohttp.ClientError, asyncio.TimeoutError)):
            return Retry(code, message)
        return classify_error(error)

    def _open(self) -> aiohttp.ClientSession:
        target = self._target
        headers = {"Content-Type": _CONTENT_TYPES[target.body]}
        if target.bearer_token is not None:
            headers["Authorization"] = f"Bearer {target.bearer_token}"
        elif target.basic_auth is not None:
            credentials = base64.b64encode(":".join(target.basic_auth).encode()).decode()
            headers["Authorization"] = f"Basic {credentials}"
        return open_session(
            connector=aiohttp.TCPConnector(limit=self._connections),
            # The writer limits the time of a request.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=target.connect_timeout_s),
            headers={**headers, **target.headers},
            middlewares=(_send_once,),
        )


async def _send_once(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Switch the retries of the library off: the writer retries.

    The library sends PUT and other idempotent methods again itself after these two errors, and not after
    others of its own.
    """
    try:
        return await send(request)
    except aiohttp.ClientConnectorError:  # there was no connection to send on
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(str(error)) from error


async def _start_of_body(response: aiohttp.ClientResponse) -> bytes:
    """Read the body to its end, so that the connection is used again, and return its first bytes.

    The status has told what becomes of the rows. So a body that does not end is not waited for, and neither
    is it the reason to send them again if the writer's time-out ends the request meanwhile.
    """
    start = b""

    async def read() -> None:
        nonlocal start
        size_bytes = 0
        async for chunk in response.content.iter_chunked(1 << 16):
            size_bytes += len(chunk)
            start += chunk[: _SHOWN_BYTES - len(start)]
            if size_bytes > _BODY_BYTES_MAX:
                response.close()
                return

    try:
        await asyncio.wait_for(read(), _BODY_S)
    except (asyncio.TimeoutError, asyncio.CancelledError):
        response.close()
    return start


def _text_of(start: bytes) -> str:
    """Return the text of a body's first bytes. It may echo the request, and must not end within a secret."""
    text = start.decode(errors="replace")
    return text if len(start) < _SHOWN_BYTES else without_last_word(text)


def _body(body: Body, entries: Sequence[Entry[bytes | AddressedRow]]) -> bytes | None:
    payloads = [entry.payload for entry in entries]
    rows = [(one.body or b"") if isinstance(one, AddressedRow) else one for one in payloads]
    if body == "json_array":
        return b"[" + b",".join(rows) + b"]"
    if body == "ndjson":
        return b"\n".join(rows) + b"\n"
    if len(rows) > 1:
        raise ConfigurationError("One row for each request needs batch_entries_max = 1.")
    return rows[0] or None


def _idempotency_key(entries: Sequence[Entry[bytes | AddressedRow]]) -> str:
    if len(entries) == 1:
        return entries[0].id
    return hashlib.sha256("\n".join(entry.id for entry in entries).encode()).hexdigest()


def _unacknowledged(status: int, body: bytes) -> Retry | None:
    """The result of a success that is a page for people; None if it is not."""
    if _PAGE.match(body) is None:
        return None
    return Retry(
        CODE,
        f"The url answers {status} with an HTML page. If this lasts, check the url: a proxy or a log-in page "
        "may answer there.",
    )


def _refusal(response: aiohttp.ClientResponse, text: str) -> Failure:
    """The result of a response that is not a success."""
    status = response.status
    if status < 300:
        return Retry(
            str(status), f"{response.reason or ''}. The status does not say that all rows are taken."
        )
    code, message = str(status), f"{response.reason or ''}: {text}" if text else response.reason or ""
    if status in _RETRIED or status >= 500:
        retry_after_s = retry_after_of(response.headers)
        return Retry(code, message, retry_after_s, is_throttled=status in _THROTTLED)
    if status in _FATAL:
        return Fatal(code, f"{message} {_FATAL[status]}", AccessRefusedError)
    if is_redirect(status):
        return redirected(status, response.headers)
    return Split(code, message)
