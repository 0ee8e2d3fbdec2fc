"""Runs OpenSearch on the loopback in a separate process. Behind a proxy it passes for Elasticsearch."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from servers.jvm import java_server
from servers.lossy_proxy import read_body
from servers.maven import classpath
from servers.ports import free_port

_FIXTURE = Path(__file__).parent / "opensearch_server"
_PAGE = 10_000
"""Maximum number of documents that a search returns."""


@dataclass(frozen=True)
class OpenSearchServer:
    """A running server. Tests that share it use separate indexes."""

    url: str

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Make a request; None if what it asks for does not exist."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request) as response:
                return json.loads(response.read() or b"null")
        except HTTPError as error:
            if error.code == 404:
                return None
            raise AssertionError(error.read().decode()) from error

    def create(self, index: str, fields: Mapping[str, str] | None = None, **settings: object) -> None:
        """Create an index with fields of these types, one shard and no replica."""
        properties = {name: {"type": kind} for name, kind in (fields or {}).items()}
        settings = {"number_of_shards": 1, "number_of_replicas": 0, **settings}
        self.ask("PUT", index, {"settings": settings, "mappings": {"properties": properties}})

    def delete(self, index: str) -> None:
        self.ask("DELETE", index)

    def set(self, index: str, **settings: object) -> None:
        self.ask("PUT", f"{index}/_settings", settings)

    def add(self, index: str, document: Mapping[str, object]) -> None:
        """Add a document with an id of the server's."""
        self.ask("POST", f"{index}/_doc", document)

    def put(self, index: str, document_id: str, document: Mapping[str, object]) -> None:
        """Add a document, or replace the one with this id."""
        self.ask("PUT", f"{index}/_doc/{document_id}", document)

    def hits(self, index: str) -> list[dict[str, Any]]:
        """Return all documents, with `_id`, `_source` and `_routing`."""
        self.ask("POST", f"{index}/_refresh")
        found = self.ask("GET", f"{index}/_search?size={_PAGE}&scroll=1m&track_total_hits=true")
        if found is None:
            return []
        hits: list[dict[str, Any]] = []
        while page := found["hits"]["hits"]:
            hits += page
            found = self.ask("POST", "_search/scroll", {"scroll": "1m", "scroll_id": found["_scroll_id"]})
        self.ask("DELETE", "_search/scroll", {"scroll_id": found["_scroll_id"]})
        assert found["hits"]["total"] == {"value": len(hits), "relation": "eq"}
        return hits

    def rows(self, index: str) -> list[dict[str, Any]]:
        return [hit["_source"] for hit in self.hits(index)]


@contextmanager
def opensearch_server(folder: Path, port: int | None = None) -> Iterator[OpenSearchServer]:
    """Start a server with its data in this folder.

    Args:
        port: None: a free one

    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    jars, port = classpath(_FIXTURE / "pom.xml"), port or free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = ["-cp", jars, str(_FIXTURE / "Server.java"), str(folder), str(port)]
    with java_server(arguments, folder, lambda: urlopen(url).close(), heap="512m"):
        yield OpenSearchServer(url)


# As Elasticsearch -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchProxy:
    """A proxy in the test's process, which keeps the headers of requests."""

    url: str
    seen: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    """Request line and headers, with their names in lower case."""


@contextmanager
def elasticsearch_proxy(backend: str) -> Iterator[SearchProxy]:
    """Start a proxy that speaks the protocol of Elasticsearch, in front of OpenSearch.

    Elasticsearch's library sends media types with its version, and expects a header in each response.
    """
    seen: list[tuple[str, Mapping[str, str]]] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), _translator(backend, seen)) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield SearchProxy(f"http://127.0.0.1:{server.server_address[1]}", seen)
        finally:
            server.shutdown()
            thread.join()


def _translator(backend: str, seen: list[tuple[str, Mapping[str, str]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = read_body(self)
            given = {name.lower(): value for name, value in self.headers.items()}
            seen.append((self.requestline, given))
            headers: dict[str, str] = {
                name: _without_version(given[name]) for name in ("accept", "content-type") if name in given
            }
            connection = http.client.HTTPConnection(urlsplit(backend).netloc, timeout=30)
            try:
                connection.request(self.command, self.path, body or None, headers)
                response = connection.getresponse()
                answer = response.read()
            except OSError:  # the backend hangs up: so does the proxy
                self.close_connection = True
                return
            finally:
                connection.close()
            self.send_response_only(response.status)
            self.send_header("X-Elastic-Product", "Elasticsearch")
            self.send_header("Content-Type", response.getheader("content-type") or "text/plain")
            if wait := response.getheader("retry-after"):
                self.send_header("Retry-After", wait)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_PUT = do_POST = do_HEAD = _serve

        def log_message(self, *_: Any) -> None:
            """Keep the test's output clean."""

    return Handler


def _without_version(media_type: str) -> str:
    return re.sub(r";\s*compatible-with=\d+", "", media_type.replace("vnd.elasticsearch+", ""))
