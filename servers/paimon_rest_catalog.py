"""Runs Paimon's REST catalog server on the loopback in a separate process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers.jvm import java_server
from servers.maven import classpath_with

_FIXTURE = Path(__file__).parent / "paimon_rest_catalog_server"
_VERSION = "2.0.0"
_PAIMON = (
    f"org.apache.paimon:paimon-flink-2.0:{_VERSION}:jar",
    f"org.apache.paimon:paimon-core:{_VERSION}:jar:tests",
)
"""The jar for Flink contains all of Paimon. The server is among the tests of the core library."""


@dataclass(frozen=True)
class PaimonRestCatalog:
    """A running server. Tests that share it use separate databases."""

    uri: str
    warehouse: str
    """Its name."""
    token: str
    folder: Path
    """Has the tables: `<database>.db/<table>`."""

    def properties_at(self, uri: str) -> dict[str, str]:
        """Return the catalog options for pypaimon, with a proxy at `uri`."""
        access = {"token.provider": "bear", "token": self.token}
        return {"metastore": "rest", "uri": uri, "warehouse": self.warehouse, **access}


@contextmanager
def paimon_rest_catalog(folder: Path, token: str) -> Iterator[PaimonRestCatalog]:
    """Start a server with its tables in this folder.

    Args:
        token: that clients have to send

    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    tables, url, warehouse = folder / "tables", folder / "url", "penstock"
    jars = classpath_with(_FIXTURE / "pom.xml", _PAIMON)
    arguments = ["-cp", jars, str(_FIXTURE / "RestCatalog.java"), tables.as_uri(), warehouse, token, str(url)]
    with java_server(arguments, folder, url.read_text):
        yield PaimonRestCatalog(url.read_text().rstrip("/"), warehouse, token, tables)
