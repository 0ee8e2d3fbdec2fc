"""A Hive Metastore on the loopback, in a process of its own; Derby in memory is its database."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.maven import classpath, java

_FIXTURE = Path(__file__).parent / "fixtures" / "hive_metastore"


@dataclass(frozen=True)
class HiveMetastore:
    """A running metastore. Tests that share it take a namespace of their own."""

    uri: str
    warehouse: Path

    @property
    def properties(self) -> dict[str, str]:
        """For pyiceberg: `load_catalog("name", **metastore.properties)`."""
        return {"type": "hive", "uri": self.uri, "warehouse": self.warehouse.as_uri()}


@contextmanager
def hive_metastore(warehouse: Path) -> Iterator[HiveMetastore]:
    """A metastore whose tables are in this folder, `file:/…` in their metadata.

    Raises:
        MavenUnreachableError: its jars are not to be had.
    """
    jars = classpath(_FIXTURE / "pom.xml")
    warehouse.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = warehouse / "metastore.log"
    with log.open("ab") as output:  # Derby writes a log of its own where the process runs
        server = subprocess.Popen(
            _command(jars, port, warehouse), stdout=output, stderr=output, cwd=warehouse
        )
    try:
        _wait_for(port, server, log)
        yield HiveMetastore(f"thrift://127.0.0.1:{port}", warehouse)
    finally:
        server.kill()
        server.wait()


def _command(jars: str, port: int, warehouse: Path) -> list[str]:
    return [
        java(),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dwarehouse={warehouse.as_uri()}",
        *("-cp", f"{_FIXTURE}:{jars}", "org.eclipse.jetty.xml.XmlConfiguration"),
        f"port={port}",
        str(_FIXTURE / "server.xml"),
    ]


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert server.poll() is None, f"the metastore ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"the metastore did not start:\n{log.read_text()}"
            time.sleep(0.1)
        else:
            return
