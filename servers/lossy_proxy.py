"""Runs an HTTP proxy that loses, delays and repeats requests and responses.

It runs in a separate process, because some calls of the Delta library keep Python's lock while they wait.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any, Literal, NamedTuple
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

Fault = Literal[
    "request lost",
    "request late",  # the connection is closed at once; the server receives it at `deliver_late()`
    "response lost",
    "response cut",  # the connection ends before the last byte
    "answered 500",
    "answered 502",
    "answered 503",
    "answered 504",
    "asked to wait",  # answered 503, with Retry-After: 2
    "committed, answered 500",
    "committed, answered 502",
    "committed, answered 503",
    "committed, answered 504",
    "sent twice",  # as gateways do; the client receives the second response
    "echoed",  # an error that contains the request's headers
    "denied",
    "answered a page",
    "answered nothing",
    "answered {}",
]

_SUCCESSES: dict[str, tuple[str, bytes]] = {
    "answered a page": ("text/html", b"<!DOCTYPE html><html><title>Log in</title></html>"),
    "answered nothing": ("text/plain", b""),
    "answered {}": ("application/json", b"{}"),
}
"""With status 200 instead of the server, which does not receive the request."""

_CONTROL = "/--faults--"
_LATE = "/--late--"


class LossyProxy:
    """Controls the proxy from the test."""

    def __init__(self, url: str) -> None:
        self.url = url

    def spend(self, *faults: Fault, on: str = "", then_on_any: bool = False) -> None:
        """Inject these faults, one per request, into requests whose request line contains all words of `on`.

        Args:
            on: words separated by spaces; empty: any request. AWS's `X-Amz-Target` counts as part of the line
            then_on_any: only the first fault needs the words; later faults hit any request
        """
        body = json.dumps({"words": on.split(), "faults": faults, "then_on_any": then_on_any}).encode()
        urlopen(Request(self.url + _CONTROL, body, method="PUT")).close()

    def spent(self) -> list[str]:
        """Return the request lines of the requests with a fault since the last `spend`."""
        with urlopen(self.url + _CONTROL) as response:
            lines: list[str] = json.load(response)
        return lines

    def hit(self) -> int:
        """Return the number of requests with a fault since the last `spend`."""
        return len(self.spent())

    def deliver_late(self) -> list[int]:
        """Send the late requests in their order and return the status codes of the responses."""
        with urlopen(Request(self.url + _LATE, method="POST")) as response:
            statuses: list[int] = json.load(response)
        return statuses


@contextmanager
def lossy_proxy(backend: str, errors: IO[bytes] | None = None, delay_ms: float = 0) -> Iterator[LossyProxy]:
    """Start a proxy in front of the server at `backend`.

    Args:
        errors: receives tracebacks, for example about disconnected clients; None: this process's stderr
        delay_ms: added to each request, like a network's latency
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        listener.set_inheritable(True)
        proxy = subprocess.Popen(
            [sys.executable, __file__, backend, str(listener.fileno()), str(delay_ms)],
            pass_fds=[listener.fileno()],
            stderr=errors,
        )
        try:
            yield LossyProxy(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            proxy.kill()
            proxy.wait()


# The proxy process ------------------------------------------------------------------------------------

_FRAMING = ("content-length", "transfer-encoding", "expect")
"""Headers of a single connection, which the proxy does not forward."""


def read_body(request: BaseHTTPRequestHandler) -> bytes:
    """Read a body with a content length or in chunks."""
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    body = b""
    while size := int(request.rfile.readline().split(b";")[0], 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    while request.rfile.readline().strip():
        """Skip the trailer."""
    return body


class _Request(NamedTuple):
    """A client's request."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]


class _Faults:
    def __init__(self) -> None:
        self.late: list[_Request] = []
        self._lock = threading.Lock()
        self._words: list[str] = []
        self._then_on_any = False
        self._faults: list[Fault] = []
        self.spent: list[str] = []

    def set(self, words: list[str], faults: list[Fault], then_on_any: bool) -> None:
        with self._lock:
            self._words, self._faults, self._then_on_any, self.spent = words, faults, then_on_any, []

    def take(self, line: str) -> Fault | None:
        with self._lock:
            if not self._faults or any(word not in line for word in self._words):
                return None
            self.spent.append(line)
            if self._then_on_any:
                self._words = []
            return self._faults.pop(0)


def _send(backend: str, request: _Request) -> tuple[int, dict[str, str], bytes]:
    """Forward the request and return status, headers and body of the response."""
    connection = http.client.HTTPConnection(urlsplit(backend).netloc, timeout=30)
    try:
        connection.request(request.method, request.path, request.body, request.headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def _handler(backend: str, faults: _Faults, delay_s: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms for the client to confirm the headers

        def _serve(self) -> None:
            body = read_body(self)
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _FRAMING}
            request = _Request(self.command, self.path, body, headers)
            if self.path == _CONTROL:
                self._control(body)
                return
            if self.path == _LATE:
                self._deliver_late()
                return
            time.sleep(delay_s)
            operation = self.headers.get("X-Amz-Target")  # all requests to AWS have the same line
            fault = faults.take(f"{self.requestline} {operation}" if operation else self.requestline)
            if fault == "request late":
                faults.late.append(request)
                self._hang_up()
            elif fault == "request lost":
                self._hang_up()
            elif fault == "echoed":
                self._answer(500, {}, json.dumps(request.headers).encode())
            elif fault == "denied":
                self._answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
            elif fault == "asked to wait":
                self._answer(503, {"Retry-After": "2"}, b"<Error><Code>SlowDown</Code></Error>")
            elif fault in _SUCCESSES:
                kind, answer = _SUCCESSES[fault]
                self._answer(200, {"Content-Type": kind}, answer)
            elif fault is not None and fault.startswith("answered"):
                self._fail(fault)
            elif fault == "sent twice":
                _send(backend, request)
                self._forward(request, None)
            else:
                self._forward(request, fault)

        def _control(self, body: bytes) -> None:
            if self.command == "PUT":
                faults.set(**json.loads(body))
            self._answer(200, {}, json.dumps(faults.spent).encode())

        def _deliver_late(self) -> None:
            statuses = []
            while faults.late:
                status, _, _ = _send(backend, faults.late.pop(0))
                statuses.append(status)
            self._answer(200, {}, json.dumps(statuses).encode())

        def _forward(self, request: _Request, fault: Fault | None) -> None:
            status, headers, answer = _send(backend, request)
            if fault == "response lost":
                self._hang_up()
            elif fault == "response cut":
                self._answer(status, headers, answer, missing=1)
                self._hang_up()
            elif fault is not None:
                self._fail(fault)
            else:
                self._answer(status, headers, answer)

        def _fail(self, fault: Fault) -> None:
            self._answer(int(fault[-3:]), {}, b"<Error><Code>SlowDown</Code></Error>")

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def _answer(self, status: int, headers: dict[str, str], body: bytes, missing: int = 0) -> None:
            headers = {name.lower(): value for name, value in headers.items()}
            length = (
                headers.pop("content-length", "0") if self.command == "HEAD" else str(len(body) + missing)
            )
            self.send_response_only(status)
            for name, value in headers.items():
                if name not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    return Handler


def _serve_on(backend: str, listener: socket.socket, delay_s: float) -> None:
    handler = _handler(backend, _Faults(), delay_s)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    _serve_on(sys.argv[1], socket.socket(fileno=int(sys.argv[2])), float(sys.argv[3]) / 1000)
