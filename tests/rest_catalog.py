"""Iceberg's own REST catalog server on the loopback, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from tests.maven import classpath, java

_FIXTURE = Path(__file__).parent / "fixtures" / "rest_catalog"


@dataclass(frozen=True)
class RestCatalogServer:
    """A running server. Tests that share it take a namespace of their own."""

    uri: str
    warehouse: Path

    @property
    def properties(self) -> dict[str, str]:
        """For pyiceberg: `load_catalog("name", **server.properties)`."""
        return self.properties_at(self.uri)

    def properties_at(self, uri: str) -> dict[str, str]:
        """The same through a proxy at `uri`."""
        return {"type": "rest", "uri": uri, "warehouse": self.warehouse.as_uri()}


@contextmanager
def rest_catalog_server(warehouse: Path) -> Iterator[RestCatalogServer]:
    """A server whose tables are in this folder, `file:/…` in their metadata.

    Raises:
        MavenUnreachableError: its jars are not to be had.
    """
    jars = classpath(_FIXTURE / "pom.xml")
    warehouse.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = warehouse / "server.log"
    with log.open("ab") as output:
        server = subprocess.Popen(_command(jars, port, warehouse), stdout=output, stderr=output)
    try:
        uri = f"http://127.0.0.1:{port}"
        _wait_for(uri, server, log)
        yield RestCatalogServer(uri, warehouse)
    finally:
        server.kill()
        server.wait()


def _command(jars: str, port: int, warehouse: Path) -> list[str]:
    return [
        java(),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *("-cp", jars, "org.eclipse.jetty.xml.XmlConfiguration"),
        f"port={port}",
        f"warehouse={warehouse.as_uri()}",
        f"database=jdbc:sqlite:{warehouse / 'catalog.sqlite'}",
        str(_FIXTURE / "server.xml"),
    ]


def _wait_for(uri: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urlopen(f"{uri}/v1/config").close()
        except OSError:
            assert server.poll() is None, f"the REST catalog ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"the REST catalog did not start:\n{log.read_text()}"
            time.sleep(0.1)
        else:
            return
