"""An HTTP server that gives every request the same answer, as a proxy or a log-in page does."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from servers.lossy_proxy import read_body


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def json(cls, text: str, kind: str = "application/json") -> Answer:
        return cls(text.encode(), headers={"Content-Type": kind})


PAGE = Answer(b"<!DOCTYPE html><html><title>Log in</title></html>", headers={"Content-Type": "text/html"})


class Request(NamedTuple):
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def operation(self) -> str:
        """The method and path, or the operation of an AWS service."""
        return self.headers.get("x-amz-target", self.line)


class AnsweringServer:
    """Controls the server from the test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answer = Answer()
        self.answers: list[Answer] = []
        """Given once each, before `answer`."""
        self.exceptions: dict[str, Answer] = {}
        """Answers to requests whose operation ends with a word, such as `GetQueueUrl`."""
        self.requests: list[Request] = []

    def answer_to(self, request: Request) -> Answer:
        self.requests.append(request)
        words = [word for word in self.exceptions if request.operation.endswith(word)]
        if words:
            return self.exceptions[words[0]]
        return self.answers.pop(0) if self.answers else self.answer


@contextmanager
def answering() -> Iterator[AnsweringServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            line = f"{self.command} {self.path}"
            answer = control.answer_to(Request(line, headers, read_body(self)))
            self.send_response_only(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    control = AnsweringServer(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield control
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def replying(reply: bytes, to: bytes) -> Iterator[int]:
    """Give the same reply to each occurrence of some bytes on a TCP connection, and `+OK` to other requests.

    Returns:
        the port
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while request := self.request.recv(1 << 16):
                count = request.count(to)
                self.request.sendall(reply * count or b"+OK\r\n" * request.count(b"*"))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server.server_address[1]
        finally:  # a thread that listens to a closed socket takes a whole core
            server.shutdown()
