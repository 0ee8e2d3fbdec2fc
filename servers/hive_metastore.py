"""Runs a Hive Metastore on the loopback in a separate process, with Derby in memory as its database."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers.jetty import jetty_server

_FIXTURE = Path(__file__).parent / "hive_metastore_server"


@dataclass(frozen=True)
class HiveMetastore:
    """A running metastore. Tests that share it use separate namespaces."""

    uri: str
    warehouse: Path

    @property
    def properties(self) -> dict[str, str]:
        """Properties for pyiceberg: `load_catalog("name", **metastore.properties)`."""
        return {"type": "hive", "uri": self.uri, "warehouse": self.warehouse.as_uri()}


@contextmanager
def hive_metastore(warehouse: Path) -> Iterator[HiveMetastore]:
    """Start a metastore with its tables in this folder, `file:/…` in their metadata.

    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    with jetty_server(_FIXTURE, warehouse, {}, _probe) as port:
        yield HiveMetastore(f"thrift://127.0.0.1:{port}", warehouse)


def _probe(port: int) -> None:
    socket.create_connection(("127.0.0.1", port)).close()
