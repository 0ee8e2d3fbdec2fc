"""The HTTP client against a real server that plays every failure."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any, TypeAlias

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from tests.support.request_service import Observed

from penstock.committers.errors import AccessRefusedError, ConfigurationError, PenstockError, RetryableError
from penstock.writers.requests import http
from penstock.writers.requests.acknowledgements import result_of_each
from penstock.writers.requests.client import Client, ErrorClassifier
from penstock.writers.requests.entry import Entry
from penstock.writers.requests.http import HttpClient, HttpTarget
from penstock.writers.requests.limits import Limits
from penstock.writers.requests.results import DELIVERED, DeadLetter, Fatal, Result, Retry, Split
from penstock.writers.requests.retry_budget import RetryBudget
from penstock.writers.requests.sender import RequestSender

Answer: TypeAlias = "int | web.Response | Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]"

ROWS = [b'{"id":0}', b'{"id":1}', b'{"id":2}']
TIMEOUT_S = 0.2
PATIENCE_S = 10


class Server:
    """Answers its requests in turn, and all after the last answer with 200."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[web.BaseRequest] = []
        self.bodies: list[bytes] = []
        self.connections: set[object] = set()
        self.url = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        self.connections.add(request.transport)
        self.bodies.append(await request.read())
        answer = self._answers.pop(0) if self._answers else 200
        if isinstance(answer, int):
            return web.Response(status=answer, text="a message" if answer >= 400 else "")
        if isinstance(answer, web.Response):
            return answer
        return await answer(request)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Server]:
        async with RawTestServer(self.handle) as server:
            self.url = str(server.make_url("/rows?x=1"))
            yield self


def cut(sent: bytes, after_s: float = 0.01) -> Answer:
    """Send these bytes, and close the connection after a while."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(sent)
        await asyncio.sleep(after_s)
        request.transport.abort()
        return web.Response()

    return answer


async def reset(request: web.BaseRequest) -> web.StreamResponse:
    """Close the connection with RST."""
    assert request.transport is not None
    connection = request.transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.abort()
    return web.Response()


CUT_BEFORE_THE_RESPONSE = cut(b"")
CUT_IN_THE_BODY = cut(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it")


def entries(rows: Sequence[bytes] = ROWS) -> list[Entry[bytes]]:
    return [Entry(row, len(row), f"batch-7-{number}", number) for number, row in enumerate(rows)]


def sent(
    server: Server,
    *,
    rows: Sequence[bytes] = ROWS,
    observer: Observed | None = None,
    batch_entries_max: int = 3,
    attempts_max: int = 3,
    **target: Any,
) -> None:
    """Write the rows to the server and flush."""

    async def main() -> None:
        async with server.running():
            writer = RequestSender(
                HttpClient(HttpTarget(server.url, **target), 4),
                Limits(
                    batch_entries_max=batch_entries_max,
                    in_flight_requests_max=4,
                    request_timeout_s=TIMEOUT_S,
                ),
                retries=RetryBudget(attempts_max=attempts_max, backoff_first_s=0.001),
                observer=observer,
            )
            try:
                await writer.write(entries(rows))
                await writer.close()
            finally:
                await writer.abort()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def results_of(server: Server, requests: int, url: Callable[[str], str] = str, **target: Any) -> list[Result]:
    """The client's results of requests with three rows to the server, or to another URL. They have one
    connection. `DELIVERED`: each row is.
    """

    async def main() -> list[Result]:
        async with server.running():
            client = HttpClient(HttpTarget(url(server.url), **target), 1)
            results: list[Result] = []
            try:
                for _ in range(requests):
                    try:
                        of_each = result_of_each(await client.submit(entries()), 3)
                        assert of_each == [of_each[0]] * 3
                        results.append(of_each[0])
                    except Exception as error:  # noqa: BLE001  whatever the library raises
                        results.append(client.classify(error))
            finally:
                await client.close()
            return results

    return asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def result_of(answer: Answer, url: Callable[[str], str] = str) -> Result:
    return results_of(Server(answer), 1, url)[0]


def test_it_is_a_client_with_a_classifier() -> None:
    client: Client[bytes] = HttpClient(HttpTarget("http://localhost"), 1)
    assert isinstance(client, ErrorClassifier)


@pytest.mark.parametrize(
    ("body", "batch", "bodies", "content_type"),
    [
        ("json_array", 3, [b"[" + b",".join(ROWS) + b"]"], "application/json"),
        ("ndjson", 3, [b"\n".join(ROWS) + b"\n"], "application/x-ndjson"),
        ("row", 1, ROWS, "application/json"),
    ],
)
def test_rows_are_an_array_or_lines_or_a_request_each(
    body: str, batch: int, bodies: list[bytes], content_type: str
) -> None:
    server = Server()
    sent(server, body=body, batch_entries_max=batch)
    assert sorted(server.bodies) == sorted(bodies)
    assert {request.content_type for request in server.requests} == {content_type}
    assert {request.method for request in server.requests} == {"POST"}
    assert {request.path_qs for request in server.requests} == {"/rows?x=1"}
    if body == "json_array":
        assert json.loads(server.bodies[0]) == [{"id": 0}, {"id": 1}, {"id": 2}]


def test_a_request_for_each_row_has_one_row() -> None:
    with pytest.raises(ConfigurationError, match="batch_entries_max = 1"):
        sent(Server(), body="row", batch_entries_max=2)


def test_the_method_and_headers_are_those_of_the_target() -> None:
    server = Server()
    headers = {"Content-Type": "application/vnd.kafka.json.v2+json", "X-Tenant": "blue"}
    sent(server, method="PUT", headers=headers)
    (request,) = server.requests
    assert request.method == "PUT"
    assert request.headers["X-Tenant"] == "blue"
    assert request.headers.getall("Content-Type") == ["application/vnd.kafka.json.v2+json"]


@pytest.mark.parametrize(
    ("auth", "header"),
    [
        ({"bearer_token": "t0ken"}, "Bearer t0ken"),
        ({"basic_auth": ("jörg", "pass:word")}, "Basic asO2cmc6cGFzczp3b3Jk"),
        ({}, None),
    ],
)
def test_requests_are_authenticated(auth: dict[str, Any], header: str | None) -> None:
    server = Server()
    sent(server, **auth)
    assert server.requests[0].headers.get("Authorization") == header
    target = HttpTarget("http://localhost", headers={"X-Key": "s3cret"}, **auth)
    assert not any(secret in repr(target) for secret in ("t0ken", "pass:word", "s3cret"))


def test_one_way_to_authenticate_is_enough() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        HttpTarget("http://localhost", bearer_token="a", basic_auth=("b", "c"))


def test_the_idempotency_key_of_a_row_is_its_id_and_stays_the_same() -> None:
    server = Server(CUT_IN_THE_BODY, 503)
    sent(server, rows=ROWS[:1], body="row", batch_entries_max=1)
    assert [request.headers["Idempotency-Key"] for request in server.requests] == ["batch-7-0"] * 3


def test_the_idempotency_key_of_a_batch_depends_on_its_entries_alone() -> None:
    server = Server(CUT_BEFORE_THE_RESPONSE)
    sent(server)
    sent(server, rows=ROWS[:2])
    first, again, others = (request.headers["Idempotency-Key"] for request in server.requests)
    assert first == again != others
    assert len(first) == 64


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_success_is_delivered(status: int) -> None:
    assert result_of(status) == DELIVERED


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_retried(status: int) -> None:
    result = result_of(status)
    assert isinstance(result, Retry)
    assert (result.code, result.retry_after_s) == (str(status), None)
    assert result.message.endswith(": a message")
    assert result.is_throttled == (status in (429, 503))
    server = Server(status)
    sent(server)
    assert server.bodies[0] == server.bodies[1]


@pytest.mark.parametrize("status", [401, 403, 404, 405, 407, 410, 415])
def test_what_someone_has_to_change_stops_the_writer(status: int) -> None:
    server = Server(status)
    with pytest.raises(AccessRefusedError, match=rf"{status}\. .*a message Check the"):
        sent(server)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 307])
def test_a_redirect_is_not_followed(status: int) -> None:
    server = Server(web.Response(status=status, headers={"Location": "http://elsewhere/"}))
    with pytest.raises(ConfigurationError, match="redirects to http://elsewhere/"):
        sent(server)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_what_the_service_refuses_is_a_dead_letter(status: int) -> None:
    assert isinstance(result_of(status), Split)
    observed = Observed()
    sent(Server(status), rows=ROWS[:1], observer=observed)
    ((_, result),) = observed.done
    assert isinstance(result, DeadLetter)
    assert result.code == str(status)
    assert "a message" in result.message


def test_only_the_refused_row_of_a_batch_is_a_dead_letter() -> None:
    class Strict(Server):
        async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
            await super().handle(request)
            return web.Response(status=400 if b'"id":1' in self.bodies[-1] else 200)

    observed = Observed()
    sent(Strict(), observer=observed)
    assert sorted((position, type(result).__name__) for position, result in observed.done) == [
        (0, "Delivered"),
        (1, "DeadLetter"),
        (2, "Delivered"),
    ]


def test_a_wait_that_the_service_asks_for_is_read() -> None:
    result = result_of(web.Response(status=429, headers={"Retry-After": "7"}))
    assert isinstance(result, Retry)
    assert result.retry_after_s == 7
    date = datetime.now(timezone.utc) + timedelta(seconds=60)
    header = format_datetime(date, usegmt=True)
    result = result_of(web.Response(status=503, headers={"Retry-After": header}))
    assert isinstance(result, Retry)
    assert result.retry_after_s is not None
    assert 50 < result.retry_after_s <= 60


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(CUT_BEFORE_THE_RESPONSE, id="before the response"),
        pytest.param(cut(b"HTTP/1.1 200 OK\r\nContent-Le"), id="in the headers"),
        pytest.param(CUT_IN_THE_BODY, id="in the body"),
        pytest.param(
            cut(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nhalf of it\r\n"), id="in a chunk"
        ),
        pytest.param(cut(b"-ERR unknown command\r\n\r\n"), id="not HTTP"),
    ],
)
def test_a_request_that_is_cut_off_is_sent_again(failure: Answer) -> None:
    assert isinstance(result_of(failure), Retry)
    server = Server(failure)
    observed = Observed()
    sent(server, observer=observed)
    assert server.bodies[0] == server.bodies[1]
    assert [result for _, result in observed.done] == [DELIVERED] * 3


@pytest.mark.parametrize("sent_before", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n"])
def test_a_request_without_a_status_times_out_and_is_sent_again(sent_before: bytes) -> None:
    server = Server(cut(sent_before, after_s=PATIENCE_S))
    sent(server)
    assert server.bodies[0] == server.bodies[1]


async def endless(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    with suppress(ConnectionError):
        while True:
            await response.write(b"x" * 100_000)
    return response


@pytest.mark.parametrize("body_s", [0.05, PATIENCE_S], ids=["after its own time", "with the time-out"])
@pytest.mark.parametrize(
    "body", [cut(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it", PATIENCE_S), endless]
)
def test_a_success_whose_body_does_not_end_is_delivered_once(
    body: Answer, body_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The status has acknowledged the rows: to send them again would double them."""
    monkeypatch.setattr(http, "_BODY_S", body_s)
    server, observed = Server(body), Observed()
    sent(server, observer=observed)
    assert len(server.requests) == 1
    assert [result for _, result in observed.done] == [DELIVERED] * 3


def test_an_error_whose_body_does_not_begin_stops_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_BODY_S", 0.05)
    head = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 100\r\n\r\n"
    server = Server(cut(head, PATIENCE_S))
    with pytest.raises(AccessRefusedError, match="401"):
        sent(server)
    assert len(server.requests) == 1


def test_a_service_that_is_down_is_tried_again_until_the_budget_is_used_up() -> None:
    class Down(Server):
        @asynccontextmanager
        async def running(self) -> AsyncIterator[Server]:
            async with super().running():
                pass
            yield self

    with pytest.raises(RetryableError, match="Not delivered in 3 attempts"):
        sent(Down())


@pytest.mark.parametrize(
    "url", [lambda url: url.replace("http:", "https:"), lambda _: "rows"], ids=["https", "no url"]
)
def test_what_no_retry_can_mend_is_an_error_of_the_configuration(url: Callable[[str], str]) -> None:
    result = result_of(200, url)
    assert isinstance(result, Fatal)
    assert result.error is ConfigurationError


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("failure", [CUT_BEFORE_THE_RESPONSE, reset], ids=["closed", "reset"])
def test_the_library_does_not_send_again(method: str, failure: Answer) -> None:
    """On a connection that is used again, it would send a PUT again itself."""
    server = Server(200, failure)
    first, second = results_of(server, 2, method=method)
    assert first == DELIVERED
    assert isinstance(second, Retry)
    assert len(server.requests) == 2
    assert len(server.connections) == 1


def test_connections_are_used_again() -> None:
    server = Server(*[503, 400] * 2, web.Response(text="x" * 1_000_000))
    rows = [b'{"id":%d}' % number for number in range(100)]
    sent(server, rows=rows, batch_entries_max=1, attempts_max=9)
    assert len(server.requests) > 100
    assert len(server.connections) <= 4


def test_an_endless_error_message_is_cut() -> None:
    result = result_of(web.Response(status=400, text="x" * 10_000_000))
    assert isinstance(result, Split)
    assert len(result.message) < 2000


def test_errors_show_no_password_of_the_url() -> None:
    async def main() -> None:
        client = HttpClient(HttpTarget("http://me:s3cret@127.0.0.1:1/"), 1)
        writer = RequestSender(client, retries=RetryBudget(attempts_max=1))
        await writer.write(entries())
        with pytest.raises(PenstockError) as raised:
            await writer.flush()
        assert "s3cret" not in str(raised.value)
        await writer.abort()

    asyncio.run(main())
