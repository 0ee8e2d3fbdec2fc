"""The client of a Schema Registry, against answers that a real one seldom gives."""

from __future__ import annotations

import base64
import json
import pickle
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from servers.certificates import make_certificates

from penstock import ConfigurationError, RetryableError, SchemaMismatchError
from penstock.committers.errors import AccessRefusedError
from penstock.committers.schema_registry import RegisteredSchema, SchemaRegistry, header

SECRET = "geheim-4711"
Answer = Callable[[str, str, dict[str, str]], tuple[int, Any]]
"""From method, path and headers: the status, and the body."""


@contextmanager
def answering(answer: Answer, certificates: Path | None = None) -> Iterator[str]:
    """Run a server that answers so; return its address."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = answer(self.command, self.path, dict(self.headers))
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "http://127.0.0.1:1/log-in")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _answer

        def log_message(self, *_: Any) -> None:
            """Nothing is logged."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "ca.pem", certificates / "key.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        scheme = "http" if certificates is None else "https"
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def registry(url: str, **more: str) -> SchemaRegistry:
    given = {name.replace("_", "."): value for name, value in more.items()}
    return SchemaRegistry.of({"url": url, **given})


def test_a_schema_is_read_once_and_the_client_crosses_processes() -> None:
    asked = []

    def answer(method: str, path: str, _: object) -> tuple[int, Any]:
        asked.append((method, path))
        return 200, {"schema": '"string"'}

    with answering(answer) as url:
        client = pickle.loads(pickle.dumps(registry(url)))
        assert [client.schema(7), client.schema(7)] == [RegisteredSchema(7, '"string"')] * 2
    assert asked == [("GET", "/schemas/ids/7")]
    assert header(258) == b"\0\0\0\1\2"


def test_the_next_address_is_asked_if_one_does_not_answer() -> None:
    with answering(lambda *_: (200, {"id": 3})) as url, answering(lambda *_: (503, b"busy")) as busy:
        assert registry(f"http://127.0.0.1:1, {busy},{url}").register("s", "{}", "AVRO") == 3


@pytest.mark.parametrize(
    ("status", "body", "error", "problem"),
    [
        (401, {"message": f"not {SECRET}"}, AccessRefusedError, r"denies access \(401\): not \*\*\*"),
        (403, b"<html>", AccessRefusedError, r"denies access \(403\)"),
        (302, b"", AccessRefusedError, r"redirects to http://127.0.0.1:1/log-in"),
        (500, {"message": "broken"}, RetryableError, "answers 500: broken"),
        (200, b"<html>", RetryableError, "returned no JSON.* registry.url"),
        (200, [], RetryableError, "returned no JSON object"),
        (200, {"id": "x"}, RetryableError, "an answer without an id"),
        (404, {"error_code": 404}, AccessRefusedError, "has no subjects. Check registry.url"),
        (409, {"message": "id has another type"}, ConfigurationError, "subject s: id has another type"),
        (422, {"message": "no schema"}, ConfigurationError, "refuses the schema"),
    ],
)
def test_what_is_no_id_is_an_error(status: int, body: Any, error: type[Exception], problem: str) -> None:
    with answering(lambda *_: (status, body)) as url:
        client = registry(url, basic_auth_user_info=f"u:{SECRET}")
        with pytest.raises(error, match=problem) as failure:
            client.register("s", f'"{status}{url}"', "AVRO")
    assert SECRET not in str(failure.value) + repr(client)


def test_a_schema_that_is_unknown_or_refers_to_others_is_not_used() -> None:
    with answering(lambda *_: (404, {})) as url:
        with pytest.raises(SchemaMismatchError, match="has no schema 9"):
            registry(url).schema(9)
        assert registry(url).latest("s") is None
        assert registry(url).find("s", "{}", "AVRO") is None
    references = [{"name": "a", "subject": "a", "version": 1}]
    with answering(lambda *_: (200, {"schema": "{}", "references": references})) as url:
        with pytest.raises(SchemaMismatchError, match="refers to others"):
            registry(url).schema(9)


def test_a_registry_that_does_not_answer_is_tried_again_later() -> None:
    with pytest.raises(RetryableError, match=r"was not reached: .* Check the options registry"):
        registry("http://127.0.0.1:1").schema(1)


def test_tls_and_credentials(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    given: list[str] = []

    def answer(_: str, __: str, headers: dict[str, str]) -> tuple[int, Any]:
        given.append(headers["Authorization"])
        return 200, {"schema": "{}", "schemaType": "PROTOBUF"}

    with answering(answer, tmp_path) as url:
        trusted = {"ssl_ca_location": str(tmp_path / "ca.pem")}
        found = registry(url, **trusted, basic_auth_user_info=f"u:{SECRET}").schema(1)
        registry(url, **trusted, bearer_auth_token=SECRET).schema(2)
        with pytest.raises(AccessRefusedError, match=r"(?i)certificate"):
            registry(url).schema(3)
    assert found.kind == "PROTOBUF"
    assert given == [f"Basic {base64.b64encode(f'u:{SECRET}'.encode()).decode()}", f"Bearer {SECRET}"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "registry.url must be the address"),
        ({"url": "registry:8081"}, "registry.url must be the address"),
        ({"url": f"http://u:{SECRET}@h"}, "registry.url has a user"),
        ({"url": "http://h", "user": "x"}, "registry.user is no property of a registry"),
        ({"url": "http://h", "basic.auth.user.info": SECRET}, "must be user:password"),
        ({"url": "http://h", "basic.auth.user.info": "a:b", "bearer.auth.token": "c"}, "exclude each other"),
        ({"url": "http://h", "ssl.key.location": "/k"}, "go together"),
    ],
)
def test_wrong_properties_are_refused_without_their_values(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as failure:
        SchemaRegistry.of(given)
    assert SECRET not in str(failure.value)


def test_files_that_cannot_be_read_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"files of registry\.ssl\.\* cannot be read"):
        registry("https://127.0.0.1:1", ssl_ca_location="/missing").schema(1)
