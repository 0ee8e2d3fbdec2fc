"""Runs Apicurio on the loopback, with the API of Confluent's Schema Registry, in a separate process."""

from __future__ import annotations

import json
import os
import tarfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.jvm import java_server
from servers.maven import classpath_with
from servers.ports import free_port

_POM = Path(__file__).parent / "kafka_server" / "pom.xml"
_ARTIFACT = "io.apicurio:apicurio-registry-app:2.4.2.Final:tar.gz:all"


@dataclass(frozen=True)
class SchemaRegistryServer:
    """A running registry. Tests that share it use separate subjects."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def ask(self, path: str, body: Mapping[str, Any] | None = None, method: str = "GET") -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, content, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def set_compatibility(self, subject: str, level: str) -> None:
        self.ask(f"/config/{subject}", {"compatibility": level}, "PUT")


@contextmanager
def schema_registry(folder: Path) -> Iterator[SchemaRegistryServer]:
    """Start a registry without schemas, which it keeps in memory.

    Raises:
        MavenUnreachableError: it cannot be downloaded.
    """
    archive = Path(classpath_with(_POM, [_ARTIFACT]).split(os.pathsep)[-1])
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (runner,) = folder.rglob("*-runner.jar")
    server = SchemaRegistryServer(free_port())
    properties = {"quarkus.http.host": "127.0.0.1", "quarkus.http.port": server.port}
    arguments = [*(f"-D{name}={value}" for name, value in properties.items()), "-jar", str(runner)]
    with java_server(arguments, folder, lambda: server.ask("/subjects"), heap="384m"):
        yield server
