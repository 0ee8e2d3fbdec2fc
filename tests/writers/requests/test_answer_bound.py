"""An answer that never ends, or that is a bomb of gzip, takes no memory: all clients stop at one bound."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from tests.datasource.test_service_options import GIVEN
from tests.support.service_places import PLACE, result_of_failure, rows_of, service_of, submit_once

from penstock.committers.errors import RetryableError
from penstock.datasource.requests.sink import RequestSink
from penstock.writers.requests.answers import ANSWER_BYTES_MAX
from penstock.writers.requests.results import DELIVERED, Retry

PIECE = b"x" * (1 << 20)
BUFFERED = 48
"""MiB that sockets and the clients' streams hold in addition."""
TOO_LARGE = f"more than {ANSWER_BYTES_MAX:,} bytes"
KEYS = {"accessKeyId": "a", "secretAccessKey": "b"}
HEAD = b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nX-Elastic-Product: Elasticsearch\r\n"
GREETING = b'INFO {"server_id": "x", "version": "2.10.0", "headers": true, "max_payload": 1048576}\r\n'


class Endless:
    """Answers without end, up to four times the bound."""

    def __init__(self, kind: str, status: int = 200, *, is_gzip: bool = False) -> None:
        self._kind = kind
        self._head = HEAD % status
        self._is_gzip = is_gzip
        self.sent_mib = 0

    def serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self._kind == "nats":
                for said in (GREETING, b"PONG\r\n", b"MSG _INBOX.x 1 99999999999\r\n"):
                    connection.sendall(said)
                    connection.recv(1 << 16)
            elif self._kind == "redis":
                connection.recv(1 << 16)
                connection.sendall(b"*2\r\n$1\r\na\r\n$99999999999\r\n")
            elif self._is_gzip:
                connection.recv(1 << 16)
                body = gzip.compress(bytes(4 * ANSWER_BYTES_MAX), 1)
                connection.sendall(
                    b"%sContent-Encoding: gzip\r\nContent-Length: 99999999\r\n\r\n" % self._head
                )
                connection.sendall(body)
                connection.recv(1)
            else:
                while connection.recv(1 << 16).startswith(b"HEAD"):
                    connection.sendall(b"%sContent-Length: 2\r\n\r\n" % self._head)
                connection.sendall(b"%sContent-Length: 99999999999\r\n\r\n" % self._head)
            while self.sent_mib < 4 * ANSWER_BYTES_MAX >> 20:
                connection.sendall(PIECE)
                self.sent_mib += 1


@contextmanager
def endless(kind: str, status: int = 200, *, is_gzip: bool = False) -> Iterator[tuple[RequestSink, Endless]]:
    """Yield a sink whose service answers without end."""
    service = Endless(kind, status, is_gzip=is_gzip)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=service.serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        scheme = kind if kind in ("nats", "redis") else "http"
        place = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        given = {**GIVEN[kind], "url": place}
        if "region" in given:
            given = {**GIVEN[kind], "endpointUrl": place, **KEYS}
        yield service_of(kind).sink(given), service
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("kind", [kind for kind in GIVEN if kind != "http"])
def test_an_answer_without_end_is_read_up_to_the_bound_and_is_a_retry(kind: str) -> None:
    with endless(kind) as (sink, service):
        result = result_of_nats(sink) if kind == "nats" else result_of_failure(sink.requests, rows_of(1))
    assert isinstance(result, Retry)
    assert TOO_LARGE in result.message
    assert service.sent_mib <= (ANSWER_BYTES_MAX >> 20) + BUFFERED


def result_of_nats(sink: RequestSink) -> object:
    """Its client has a result for each message."""
    (result,) = submit_once(sink.requests, sink.requests.entries(rows_of(1), PLACE))
    return result


@pytest.mark.parametrize("kind", [kind for kind in GIVEN if kind not in ("http", "nats")])
def test_a_check_reads_an_answer_up_to_the_bound(kind: str) -> None:
    with endless(kind) as (sink, service), pytest.raises(RetryableError, match=TOO_LARGE):  # NATS waits 5 s
        sink.open_table().plan_batch(rows_of(1).schema, "append", 0)
    assert service.sent_mib <= 3 * ((ANSWER_BYTES_MAX >> 20) + BUFFERED)


@pytest.mark.parametrize("kind", ["opensearch", "elasticsearch"])
def test_a_bomb_of_gzip_is_read_up_to_the_bound(kind: str) -> None:
    with endless(kind, is_gzip=True) as (sink, _):
        result = result_of_failure(sink.requests, rows_of(1))
    assert isinstance(result, Retry)
    assert TOO_LARGE in result.message


@pytest.mark.parametrize("is_gzip", [False, True])
def test_an_http_service_that_accepts_rows_with_an_answer_without_end_has_them(is_gzip: bool) -> None:
    """Its status is the acknowledgement."""
    with endless("http", is_gzip=is_gzip) as (sink, service):
        assert submit_once(sink.requests, sink.requests.entries(rows_of(1), PLACE)) == [DELIVERED]
    assert service.sent_mib <= (ANSWER_BYTES_MAX >> 20) + BUFFERED


def test_of_an_http_error_only_the_beginning_is_read() -> None:
    with endless("http", 503) as (sink, service):
        requests: Any = sink.requests
        client = requests.new_client()

        async def submit() -> object:
            try:
                return await client.submit(requests.entries(rows_of(1), PLACE))
            finally:
                await client.close()

        assert isinstance(asyncio.run(submit()), Retry)
    assert service.sent_mib <= BUFFERED
