"""ClickHouse's HTTP interface over chDB, ClickHouse's engine in this process: as much of it as clients of
tables need. Started by `clickhouse`: port, folder of the databases, user, password, and for TLS the folder
of the certificate.

The engine, its files, its errors and its formats are ClickHouse's own. From here are only HTTP, the user and
the way of rows into an INSERT: their bytes are written to a file, which the engine reads in their format.
"""

from __future__ import annotations

import base64
import re
import secrets
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import parse_qs, urlsplit

from chdb import session

_INSERT = re.compile(
    r"(INSERT\s+INTO\s+(?P<table>\S+)\s*\((?P<columns>.*)\)\s*)(?P<settings>SETTINGS\s.*?)?\s*FORMAT\s+(?P<format>\w+)\s*",
    re.DOTALL | re.IGNORECASE,
)
_CODE = re.compile(r"Code: (\d+)")
_STATUS = {"60": 404, "62": 400, "81": 404, "497": 403, "516": 403}
"""UNKNOWN_TABLE, SYNTAX_ERROR, UNKNOWN_DATABASE, ACCESS_DENIED, AUTHENTICATION_FAILED"""

_LIMITS = {"max_query_size": 262_144, "max_ast_elements": 50_000, "max_expanded_ast_elements": 500_000}
"""Limits that a request may change, and ClickHouse's own."""

_DENIED = (
    "Code: 516. DB::Exception: Authentication failed: password is incorrect, or there is no user with such "
    "name. (AUTHENTICATION_FAILED)"
)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, folder: str, user: str, password: str) -> None:
        opened: Any = session.Session  # has no type information
        self.session = opened(folder)
        self._lock = threading.Lock()  # a session keeps the output of its last query
        self.login = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        super().__init__(("127.0.0.1", port), _Handler)

    def run(self, query: str, body: bytes, output: str, limits: dict[str, str]) -> bytes:
        """Run a query, with the rows of an INSERT in the body."""
        with self._lock:
            for name, value in limits.items():
                self.session.query(f"SET {name} = {int(value)}")
            try:
                return self._run(query, body, output)
            except Exception:
                self.session.query("SELECT 1")  # else the next query returns what this one has begun
                raise
            finally:
                for name in limits:
                    self.session.query(f"SET {name} = {_LIMITS[name]}")

    def _run(self, query: str, body: bytes, output: str) -> bytes:
        insert = _INSERT.fullmatch(query)
        if insert is None:
            return bytes(self.session.query(query, output).bytes())
        described = str(self.session.query(f"DESCRIBE TABLE {insert['table']}", "TabSeparatedRaw"))
        types = dict(line.split("\t")[:2] for line in described.splitlines())
        names = [name.strip() for name in insert["columns"].split(",")]
        plain = {name: name.strip("`").replace("``", "`").replace("\\`", "`") for name in names}
        structure = ", ".join(f"{name} {types[plain[name]]}" for name in names).replace("\\", "\\\\")
        escaped = structure.replace("'", "\\'")
        with NamedTemporaryFile(suffix=".rows") as file:
            file.write(body)
            file.flush()
            source = f"file('{file.name}', {insert['format']}, '{escaped}')"
            settings = insert["settings"] or ""
            query = f"{insert[1]} {settings} SELECT {', '.join(names)} FROM {source}"
            return bytes(self.session.query(query, output).bytes())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 64 * 1024  # header and content in one segment
    server: _Server

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self._answer(200, b"Ok.\n")
        else:
            self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        given = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if not secrets.compare_digest(self.headers.get("Authorization", ""), self.server.login):
            self._fail(_DENIED)
            return
        query, rows = (given["query"], body) if "query" in given else (body.decode(), b"")
        try:
            limits = {name: value for name, value in given.items() if name in _LIMITS}
            found = self.server.run(query, rows, given.get("default_format", "TabSeparated"), limits)
        except Exception as error:  # noqa: BLE001  chDB has errors of several classes
            self._fail(str(error))
        else:
            self._answer(200, found)

    def _fail(self, message: str) -> None:
        found = _CODE.search(message)
        code = found[1] if found else "0"
        self._answer(_STATUS.get(code, 500), message.encode(), {"X-ClickHouse-Exception-Code": code})

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing: a request may have a secret."""


if __name__ == "__main__":
    port, folder, user, password, *tls = sys.argv[1:]
    Path(folder).mkdir(exist_ok=True)
    server = _Server(int(port), folder, user, password)
    for certificates in tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(Path(certificates) / "ca.pem", Path(certificates) / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.serve_forever()
