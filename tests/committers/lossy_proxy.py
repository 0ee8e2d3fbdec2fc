"""A proxy before an S3 server that loses requests or responses on demand: the network's worst moments."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["request lost", "response lost", "answered 503", "landed, answered 503", "denied"]


@dataclass
class LossyProxy:
    """Forwards to `backend`. `faults` are used up one by one, by requests whose line contains `where`."""

    backend: str
    where: str = "PUT"
    faults: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    """Request lines that a fault was spent on."""
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fault_for(self, line: str) -> Fault | None:
        with self._lock:
            if not self.faults or any(part not in line for part in self.where.split()):
                return None
            self.seen.append(line)
            return self.faults.pop(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def lossy_proxy(backend: str) -> Iterator[LossyProxy]:
    proxy = LossyProxy(backend)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(proxy))
    server.daemon_threads = True
    proxy.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()


def _handler(proxy: LossyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy.fault_for(self.requestline)
            if fault == "request lost":
                self._hang_up()
            elif fault == "denied":
                self._answer(403, [], b"<Error><Code>AccessDenied</Code></Error>")
            elif fault == "answered 503":
                self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
            else:
                self._forward(body, fault)

        def _forward(self, body: bytes, fault: Fault | None) -> None:
            backend = http.client.HTTPConnection(urlsplit(proxy.backend).netloc, timeout=30)
            try:
                backend.request(self.command, self.path, body, dict(self.headers))
                response = backend.getresponse()
                answer = response.read()
                if fault == "response lost":
                    self._hang_up()
                elif fault == "landed, answered 503":
                    self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
                else:
                    self._answer(response.status, response.getheaders(), answer)
            finally:
                backend.close()

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = len(body)
            if self.command == "HEAD":
                length = int(dict((n.lower(), v) for n, v in headers).get("content-length", 0))
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on

        def log_message(self, *_: object) -> None:
            pass

    return Handler
