"""An Iceberg table, read from its files by duckdb's own reader. The catalog only says which metadata file is
current.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..committers.errors import ConfigurationError
from ..committers.iceberg.address import MAIN_BRANCH, IcebergAddress, parse_table_name
from ..committers.iceberg.catalog import SQLITE_FILE, CatalogConfig
from .duckdb_reader import as_path, load_extensions, quoted, rows, stored_files
from .table import TableVersion

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Metadata = Mapping[str, Any]


@dataclass(frozen=True)
class IcebergTable:
    """An Iceberg table or a branch of it, named as in the sink's options.

    Args:
        table: the option `table`: `namespace.name`
        warehouse: the option `warehouse`; without a catalog, the local folder of an embedded catalog
        catalog: the option `catalog`
        catalog_properties: the options `catalog.*` without the prefix, such as `{"type": "rest", ...}`; never
            shown
        branch: the option `branch`
    """

    table: str
    warehouse: str | Path | None = None
    catalog: str | None = None
    catalog_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    branch: str = MAIN_BRANCH

    @property
    def uri(self) -> str:
        """Return the address of the table in the manifest store.

        Raises:
            ConfigurationError: the options contain no catalog or no table.
        """
        return self._address.uri

    @property
    def metadata_location(self) -> str:
        """Return the location of the current metadata file, from the catalog.

        Raises:
            ConfigurationError: the table does not exist, or the catalog cannot be opened.
            RetryableError: the catalog does not answer now.
        """
        location = self._location()
        if location is None:
            raise ConfigurationError(
                f"The Iceberg table {self.uri} does not exist. Check table, catalog and warehouse."
            )
        return location

    def relation(self, connection: DuckDBPyConnection) -> str:
        """Return the relation of the branch's newest version, for a query on this connection."""
        location = self.metadata_location
        return f"iceberg_scan({self._arguments(location, self._metadata(connection, location))})"

    def read(self, connection: DuckDBPyConnection) -> TableVersion:
        """Read the branch's newest version, and its history except for expired snapshots.

        Raises:
            ConfigurationError: the table or the branch does not exist.
            RetryableError: the catalog does not answer now.
        """
        location = self.metadata_location
        metadata = self._metadata(connection, location)
        arguments = self._arguments(location, metadata)
        entries = f"iceberg_metadata({arguments}) WHERE status <> 'DELETED'"
        named = rows(connection, f"SELECT file_path, manifest_content = 'DATA' FROM {entries}")
        return TableVersion(
            relation=f"iceberg_scan({arguments})",
            added=Counter(as_path(path) for path, is_data in named if is_data),
            live={as_path(path) for path, _ in named},
            stored=set().union(*[stored_files(connection, folder) for folder in _folders(metadata)]),
            tokens=list(_tokens(metadata, self.branch)),
        )

    def _location(self) -> str | None:
        config = self._config
        if config.warehouse is not None:
            return _ask_embedded(Path(config.warehouse, SQLITE_FILE), self._address)
        from ..committers.iceberg.table import load_if_there

        table = load_if_there(config, self._address)
        return None if table is None else table.metadata_location

    @property
    def _config(self) -> CatalogConfig:
        warehouse = None if self.warehouse is None else str(self.warehouse)
        return CatalogConfig.of(self.catalog, self.catalog_properties, warehouse)

    @property
    def _address(self) -> IcebergAddress:
        return IcebergAddress(self._config.address_name, parse_table_name(self.table), self.branch)

    def _metadata(self, connection: DuckDBPyConnection, location: str) -> Metadata:
        load_extensions(connection, "avro", "iceberg")
        ((content,),) = rows(connection, f"SELECT content FROM read_blob({quoted(location)})")
        metadata: Metadata = json.loads(gzip.decompress(content) if _is_gzip(location) else content)
        return metadata

    def _arguments(self, location: str, metadata: Metadata) -> str:
        """Return the arguments of duckdb's functions for this branch."""
        arguments = quoted(location)
        if _is_gzip(location):
            arguments += ", metadata_compression_codec = 'gzip'"
        if self.branch != MAIN_BRANCH:
            head = _head(metadata, self.branch)
            if head is None:
                raise ConfigurationError(
                    f"The branch of the Iceberg table {self.uri} does not exist. Check its name."
                )
            arguments += f", snapshot_from_id = {head}"
        return arguments


# The pointer --------------------------------------------------------------------------------------------


def _ask_embedded(catalog: Path, address: IcebergAddress) -> str | None:
    """Read SQLite directly: pyiceberg would create a missing catalog."""
    if not catalog.is_file():
        return None
    *namespace, name = address.identifier
    query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
    with closing(sqlite3.connect(f"{catalog.as_uri()}?mode=rw", uri=True)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone():
            return None
        row = connection.execute(query, (".".join(namespace), name)).fetchone()
    return None if row is None else str(row[0])


# The metadata -------------------------------------------------------------------------------------------


def _is_gzip(location: str) -> bool:
    return location.endswith(".gz.metadata.json")


def _head(metadata: Metadata, branch: str) -> int | None:
    """Return the snapshot id of the branch's head; None if there is no branch, or no snapshot yet."""
    head = metadata.get("refs", {}).get(branch, {}).get("snapshot-id")
    return head if head is None or head >= 0 else None


def _folders(metadata: Metadata) -> set[str]:
    """Return the folders of the data files."""
    data = metadata.get("properties", {}).get("write.data.path")
    folders = [metadata["location"], *([data] if data else [])]
    return {as_path(folder).rstrip("/") for folder in folders}


def _tokens(metadata: Metadata, branch: str) -> Iterator[tuple[str, int, int]]:
    """Yield the tokens of the snapshots that led to the branch's head, oldest first."""
    for snapshot in reversed(list(_ancestors(metadata, branch))):
        summary = snapshot.get("summary", {})
        if "penstock.batch-id" in summary:
            batch_id = int(summary["penstock.batch-id"])
            yield summary["penstock.query-id"], batch_id, int(snapshot["snapshot-id"])


def _ancestors(metadata: Metadata, branch: str) -> Iterator[Metadata]:
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", [])}
    snapshot = snapshots.get(_head(metadata, branch))
    while snapshot is not None:
        yield snapshot
        snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))
