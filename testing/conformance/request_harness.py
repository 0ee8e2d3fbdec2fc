"""The description of a request-based destination for the conformance suite."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

from ...committers.errors import CommitStateUnknownError
from ...committers.store.progress import SqlProgress
from ..faults import Lost, lossy
from .harness import DestinationHarness, Promises


def quoted(request: bytes) -> str:
    """Return the request in three spellings, on one line."""
    text = request.decode("latin-1").replace("\r\n", " ")
    return f"{text} {quote(text, safe='')} {base64.b64encode(request).decode()}"


def http_echo(request: bytes, status: int) -> bytes:
    """See `RequestHarness.echo`."""
    head, complete, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    if not complete or len(body) < int(length[1] if length else 0):
        return b""
    error = {"type": "refused", "reason": quoted(request)}
    answer = json.dumps({"__type": "AccessDenied", "message": quoted(request), "error": error}).encode()
    return b"HTTP/1.1 %d Refused\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status,
        len(answer),
        b"" if request.startswith(b"HEAD") else answer,
    )


class RequestHarness(DestinationHarness):
    """A service that receives rows in requests. Decoupled, they wait in a row log."""

    promises = Promises(
        name="",
        payload="nothing: they send the rows. Decoupled: files of the row log",
        commit="a record in the manifest store. Decoupled: the requests, then the record",
        token="the progress in the manifest store, which is lost with it",  # noqa: S106  no secret
        is_exactly_once=False,
        is_atomic=False,
        moves_keys=False,
        stages_rows=False,
        overwrites=False,
        checks_schema=False,
        shows_secrets_to_tasks=True,
        crash_points=("commit.start", "commit.landed"),
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "row-log"

    @property
    def row_log_options(self) -> dict[str, str]:
        return {"rowLog": str(self._folder), "progressEverySeconds": "0"}

    @property
    def small_buffer(self) -> Mapping[str, str]:
        return {
            "maxRecordBytes": "1100kb",
            "maxBatchBytes": "2mb",
            "maxBufferedBytes": "4mb",
            "maxInFlightRequests": "2",
        }

    def uncommitted(self) -> Collection[str]:
        return {str(path.relative_to(self._folder)) for path in self._folder.rglob("*.arrow")}

    @property
    def echoed_options(self) -> dict[str, str]:
        """Return `unreachable_options`, with a secret that each request contains."""
        return self.unreachable_options

    greeting: bytes = b""
    """What the service sends to each client that connects."""

    def echo(self, request: bytes, *, is_of_row: bool) -> bytes:
        """Return an error of the service that quotes the request: as it is, percent-encoded and in base64.

        Here, one of an HTTP service with JSON, such as those of AWS and OpenSearch.

        Args:
            request: what has arrived; return nothing if it is not complete
            is_of_row: the service refuses a row; otherwise it denies access
        """
        return http_echo(request, 413 if is_of_row else 403)

    def losing(self, lost: Lost) -> AbstractContextManager[None]:
        """The record of the progress. For the requests, see `losing_requests`."""
        return lossy(SqlProgress, "write", lost, CommitStateUnknownError("the connection was lost"))

    def delete_uncommitted(self) -> None:
        for name in self.uncommitted():
            (self._folder / name).unlink()
