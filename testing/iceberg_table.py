"""An Iceberg table as its files show it, through duckdb's own reader. The catalog is asked only where the
current metadata file is.
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
    """An Iceberg table, or a branch of one, named as in the sink's options.

    Args:
        table: the option `table`: `namespace.name`
        warehouse: the option `warehouse`; alone it means the embedded catalog in this local folder
        catalog: the option `catalog`
        catalog_properties: the options `catalog.*`, without that prefix, such as `{"type": "rest", ...}`;
            never shown
        branch: the option `branch`
    """

    table: str
    warehouse: str | Path | None = None
    catalog: str | None = None
    catalog_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    branch: str = MAIN_BRANCH

    @property
    def uri(self) -> str:
        """As the manifest store knows the table.

        Raises:
            ConfigurationError: the options name no catalog or no table.
        """
        return self._address.uri

    @property
    def metadata_location(self) -> str:
        """Where the current metadata file is, as the catalog has it now.

        Raises:
            ConfigurationError: there is no such table, or the catalog cannot be opened as configured.
            RetryableError: the catalog does not answer now.
        """
        location = self._location()
        if location is None:
            raise ConfigurationError(
                f"There is no Iceberg table {self.uri}. Check table, catalog and warehouse."
            )
        return location

    def relation(self, connection: DuckDBPyConnection) -> str:
        """What a query on this connection reads the newest version of the branch by."""
        location = self.metadata_location
        return f"iceberg_scan({self._arguments(location, self._metadata(connection, location))})"

    def read(self, connection: DuckDBPyConnection) -> TableVersion:
        """The newest version of the branch, and its history as far as snapshots are not expired.

        Raises:
            ConfigurationError: there is no such table, or no such branch.
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
        return _ask(config, self._address)

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
        """The arguments by which duckdb's functions find it."""
        arguments = quoted(location)
        if _is_gzip(location):
            arguments += ", metadata_compression_codec = 'gzip'"
        if self.branch != MAIN_BRANCH:
            head = _head(metadata, self.branch)
            if head is None:
                raise ConfigurationError(
                    f"There is no branch of the Iceberg table {self.uri}. Check the name."
                )
            arguments += f", snapshot_from_id = {head}"
        return arguments


# The pointer --------------------------------------------------------------------------------------------


def _ask_embedded(catalog: Path, address: IcebergAddress) -> str | None:
    """SQLite alone: pyiceberg would make a catalog where there is none."""
    if not catalog.is_file():
        return None
    *namespace, name = address.identifier
    query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
    with closing(sqlite3.connect(f"{catalog.as_uri()}?mode=rw", uri=True)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchone():
            return None
        row = connection.execute(query, (".".join(namespace), name)).fetchone()
    return None if row is None else str(row[0])


def _ask(config: CatalogConfig, address: IcebergAddress) -> str | None:
    from ..committers.iceberg.table import load_if_there

    table = load_if_there(config, address)
    return None if table is None else table.metadata_location


# The metadata -------------------------------------------------------------------------------------------


def _is_gzip(location: str) -> bool:
    return location.endswith(".gz.metadata.json")


def _head(metadata: Metadata, branch: str) -> int | None:
    """Snapshot id of the branch's head; None if there is no branch, or nothing in it yet."""
    head = metadata.get("refs", {}).get(branch, {}).get("snapshot-id")
    return head if head is None or head >= 0 else None


def _folders(metadata: Metadata) -> set[str]:
    """Where data files are."""
    data = metadata.get("properties", {}).get("write.data.path")
    folders = [metadata["location"], *([data] if data else [])]
    return {as_path(folder).rstrip("/") for folder in folders}


def _tokens(metadata: Metadata, branch: str) -> Iterator[tuple[str, int, int]]:
    """Along the snapshots that led to the branch's head, oldest first."""
    for snapshot in reversed(list(_ancestors(metadata, branch))):
        summary = snapshot.get("summary", {})
        if "penstock.batch-id" in summary:
            yield (
                summary["penstock.query-id"],
                int(summary["penstock.batch-id"]),
                int(snapshot["snapshot-id"]),
            )


def _ancestors(metadata: Metadata, branch: str) -> Iterator[Metadata]:
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", [])}
    snapshot = snapshots.get(_head(metadata, branch))
    while snapshot is not None:
        yield snapshot
        snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))
