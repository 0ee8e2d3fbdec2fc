"""Runs Iceberg's REST catalog server on the loopback in a separate process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from servers.jetty import jetty_server

_FIXTURE = Path(__file__).parent / "rest_catalog_server"
_S3_JARS = (
    "org.apache.iceberg:iceberg-aws:1.11.0:jar",
    "org.apache.iceberg:iceberg-aws-bundle:1.11.0:jar",
    "dev.failsafe:failsafe:3.3.2:jar",
)
S3_WAREHOUSE = "s3://lake/iceberg"


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
def rest_catalog_server(
    warehouse: Path, s3: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[RestCatalogServer]:
    """Start a server with its tables in this folder, `file:/…` in their metadata.

    Args:
        s3: Iceberg's properties of an S3 server: then the tables are in `s3://lake/iceberg` there, and the
            folder has only the catalog
        port: None: any free one

    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    properties = {
        "warehouse": warehouse.as_uri(),
        "database": f"jdbc:sqlite:{warehouse / 'catalog.sqlite'}",
    }
    if s3 is not None:
        properties |= {**s3, "warehouse": S3_WAREHOUSE, "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    jars = () if s3 is None else _S3_JARS
    with jetty_server(_FIXTURE, warehouse, properties, _probe, more_jars=jars, port=port) as found:
        yield RestCatalogServer(f"http://127.0.0.1:{found}", warehouse)


def _probe(port: int) -> None:
    urlopen(f"http://127.0.0.1:{port}/v1/config").close()
