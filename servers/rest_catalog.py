"""Runs Iceberg's REST catalog server on the loopback in a separate process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from servers.jetty import jetty_server

_FIXTURE = Path(__file__).parent / "rest_catalog_server"


@dataclass(frozen=True)
class RestCatalogServer:
    """A running server. Tests that share it use separate namespaces."""

    uri: str
    warehouse: Path

    @property
    def properties(self) -> dict[str, str]:
        """Properties for pyiceberg: `load_catalog("name", **server.properties)`."""
        return self.properties_at(self.uri)

    def properties_at(self, uri: str) -> dict[str, str]:
        """Return the properties with a proxy at `uri`."""
        return {"type": "rest", "uri": uri, "warehouse": self.warehouse.as_uri()}


@contextmanager
def rest_catalog_server(warehouse: Path) -> Iterator[RestCatalogServer]:
    """Start a server with its tables in this folder, `file:/…` in their metadata.

    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    properties = {
        "warehouse": warehouse.as_uri(),
        "database": f"jdbc:sqlite:{warehouse / 'catalog.sqlite'}",
    }
    with jetty_server(_FIXTURE, warehouse, properties, _probe) as port:
        yield RestCatalogServer(f"http://127.0.0.1:{port}", warehouse)


def _probe(port: int) -> None:
    urlopen(f"http://127.0.0.1:{port}/v1/config").close()
