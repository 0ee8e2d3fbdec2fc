"""Claims: what a service says of a request shows no secret, even if it is the request itself."""

from __future__ import annotations

import base64
import logging
import re
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import pytest

from ...committers.errors import PenstockError
from ...committers.store.sql import SqlManifestStore
from ...datasource.stored.table_access import TableAccess
from .claims import Claims
from .deliveries import deliver
from .harness import SECRET, DestinationHarness
from .query import Query, ids, quietly
from .request_harness import RequestHarness

_IN_BASE64 = re.compile(r"[\w+/-]{8,}")


class EchoClaims(Claims):
    """Of request-based destinations with secrets. The service is at `unreachable_port`."""

    @pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
    def test_an_answer_that_echoes_the_request_shows_no_secret(
        self,
        store: SqlManifestStore,
        harness: DestinationHarness,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
        delivery: str,
    ) -> None:
        """Neither in errors with their tracebacks, nor in logs, in the store with its dead letters, or in the
        status. Decoupled, the service first denies access, and then refuses the row.
        """
        if not isinstance(harness, RequestHarness):
            return
        shown: list[str] = []
        caplog.set_level(logging.INFO)
        caplog.set_level(logging.DEBUG, "penstock")
        with echoing(harness) as (harness.unreachable_port, service):
            if not (given := harness.echoed_options):
                return
            letters = {"badRows": "deadLetter", "deadLetter": str(tmp_path / "letters")}
            options = {"delivery": delivery, **letters}
            query = Query(harness, options=options, destination_options=given, store=store)

            def run() -> None:
                try:
                    query.run(store, query.batch(0), ids(0))
                except PenstockError as error:
                    shown.append("".join(traceback.format_exception(error)))

            run()
            if delivery == "decoupled":
                access = TableAccess(storage=_secrets(harness, given), catalog={})
                for service.is_of_row in (False, True):
                    if (drained := deliver(store, access)) is not None and drained.failure is not None:
                        shown.append("".join(traceback.format_exception(drained.failure)))
                shown.append(repr(query.status(store)))

        assert service.echoed, "no request arrived at `unreachable_port`"
        assert _reveals(service.echoed), "the echoed requests have no secret: the claim is of those that do"
        shown.append(caplog.text)
        shown += [file.read_bytes().decode("latin-1") for file in tmp_path.glob("store.db*")]
        assert [text for text in shown if _reveals(text)] == []


def _secrets(harness: RequestHarness, given: dict[str, str]) -> dict[str, str]:
    """Return what `penstock deliver` gets with --storage: the secrets, and where they may be sent."""
    shown = harness.options
    return {
        name: value
        for name, value in given.items()
        if name not in harness.row_log_options and name != "retryFor" and shown.get(name) != value
    }


def _reveals(text: str) -> bool:
    """Return True if the secret is in the text: as it is, percent-encoded, or in base64."""
    texts = [text, unquote(text)]
    for word in _IN_BASE64.findall(" ".join(texts)):
        for start in range(4):
            part = word[start:].replace("-", "+").replace("_", "/")
            with suppress(ValueError):
                texts.append(base64.b64decode(part + "A" * (-len(part) % 4)).decode("latin-1"))
    return any(SECRET.casefold() in one.casefold() for one in texts)


class Echoes(Protocol):
    """See `RequestHarness`."""

    @property
    def greeting(self) -> bytes: ...

    def echo(self, request: bytes, *, is_of_row: bool) -> bytes: ...


class _Service:
    def __init__(self) -> None:
        self.is_of_row = False
        self.echoed = ""


@contextmanager
def echoing(harness: Echoes) -> Iterator[tuple[int, _Service]]:
    """Listen on a port. Answer each request with an error that quotes it."""
    service = _Service()

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.sendall(harness.greeting)
            request = b""
            while received := connection.recv(1 << 20):
                request += received
                if answer := harness.echo(request, is_of_row=service.is_of_row):
                    service.echoed += request.decode("latin-1")
                    request = b""
                    connection.sendall(answer)

    with listening(serve) as port:
        yield port, service


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serve each connection to a port in a thread of its own."""
    is_over = threading.Event()

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            if is_over.is_set():
                connection.close()
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield port
        finally:
            is_over.set()
            quietly(lambda: socket.create_connection(("127.0.0.1", port)).close(), OSError)
            thread.join()
