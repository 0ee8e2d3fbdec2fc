"""Tables on the local disk as the invariant and other checks see them: by their files, and through duckdb.

No library that wrote the table has a say.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import duckdb
from tests.readers import duckdb_with_delta, duckdb_with_iceberg


class TableOnDisk(Protocol):
    """One table in a folder of its own."""

    @property
    def folder(self) -> Path: ...

    @property
    def relation(self) -> str:
        """What a query through `connect` reads it by."""
        ...

    def connect(self) -> duckdb.DuckDBPyConnection: ...

    def added(self) -> Counter[str]:
        """How often the table names each data file, by its path below the folder."""
        ...

    def tokens(self) -> Iterator[tuple[str, int, int]]:
        """(query, batch id, version of the table), in the order of the table's history."""
        ...

    def data_files(self) -> set[str]:
        """The data files in the folder, by their paths below it."""
        ...

    def versions(self) -> int:
        """How often the table was committed to, as far as it still knows."""
        ...


def rows(table: TableOnDisk, columns: str = "*", order: str = "ALL") -> list[tuple[object, ...]]:
    """The table's rows as duckdb reads them."""
    with table.connect() as connection:
        query = f"SELECT {columns} FROM {table.relation} ORDER BY {order}"
        return connection.execute(query).fetchall()


@dataclass(frozen=True)
class DeltaOnDisk:
    """A Delta table."""

    folder: Path

    @property
    def relation(self) -> str:
        return f"delta_scan('{self.folder}')"

    def connect(self) -> duckdb.DuckDBPyConnection:
        return duckdb_with_delta()

    def actions(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """(version, action) for every action of every commit, in order."""
        for commit in sorted((self.folder / "_delta_log").glob("*.json")):
            if commit.stem.isdecimal():
                for line in commit.read_text().splitlines():
                    yield int(commit.stem), json.loads(line)

    def added(self) -> Counter[str]:
        return Counter(unquote(action["add"]["path"]) for _, action in self.actions() if "add" in action)

    def tokens(self) -> Iterator[tuple[str, int, int]]:
        for version, action in self.actions():
            if "txn" in action and not action["txn"]["appId"].endswith(":digest"):
                yield action["txn"]["appId"], action["txn"]["version"], version

    def data_files(self) -> set[str]:
        paths = {path.relative_to(self.folder) for path in self.folder.rglob("*.parquet")}
        return {str(path) for path in paths if "_delta_log" not in path.parts}

    def versions(self) -> int:
        return len(list((self.folder / "_delta_log").glob("*[0-9].json")))


@dataclass(frozen=True)
class IcebergOnDisk:
    """An Iceberg table in an embedded catalog, whose SQLite file is read here."""

    warehouse: Path
    name: str = "lake.ids"
    branch: str = "main"

    @property
    def folder(self) -> Path:
        return self.warehouse.joinpath(*self.name.split("."))

    @property
    def exists(self) -> bool:
        return (self.warehouse / "catalog.sqlite").exists() and bool(self._locations())

    @property
    def metadata_location(self) -> str:
        (location,) = self._locations()
        return location

    def _locations(self) -> list[str]:
        namespace, _, name = self.name.rpartition(".")
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
        with closing(sqlite3.connect(self.warehouse / "catalog.sqlite")) as catalog:
            return [location for (location,) in catalog.execute(query, (namespace, name))]

    def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = json.loads(
            Path(self.metadata_location.removeprefix("file://")).read_text()
        )
        return metadata

    @property
    def relation(self) -> str:
        return f"iceberg_scan('{self.metadata_location}'{self._at_branch})"

    @property
    def _at_branch(self) -> str:
        head = self.metadata()["refs"].get(self.branch)
        return "" if self.branch == "main" else f", snapshot_from_id={head['snapshot-id']}"

    def connect(self) -> duckdb.DuckDBPyConnection:
        return duckdb_with_iceberg()

    def added(self) -> Counter[str]:
        query = (
            f"SELECT file_path FROM iceberg_metadata('{self.metadata_location}'{self._at_branch}) "
            "WHERE status <> 'DELETED'"
        )
        with self.connect() as connection:
            paths = [str(path) for (path,) in connection.execute(query).fetchall()]
        return Counter(str(Path(path.removeprefix("file://")).relative_to(self.folder)) for path in paths)

    def tokens(self) -> Iterator[tuple[str, int, int]]:
        metadata = self.metadata()
        for snapshot in sorted(metadata["snapshots"], key=lambda snapshot: int(snapshot["timestamp-ms"])):
            summary = snapshot["summary"]
            if "penstock.batch-id" in summary:
                query = summary["penstock.query-id"]
                yield query, int(summary["penstock.batch-id"]), int(snapshot["snapshot-id"])

    def data_files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*.parquet")}

    def versions(self) -> int:
        return len(self.metadata()["snapshots"])
