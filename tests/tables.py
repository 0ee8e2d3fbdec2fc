"""The tables of `penstock.testing` where tests need to know more of them: their folder on the local disk."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from penstock import testing
from penstock.testing.duckdb_reader import connect
from penstock.testing.table import Table, TableVersion


def rows(table: Table, columns: str = "*", order: str = "ALL") -> list[tuple[object, ...]]:
    """The table's rows as duckdb reads them."""
    with connect() as connection:
        query = f"SELECT {columns} FROM {table.relation(connection)} ORDER BY {order}"
        return connection.execute(query).fetchall()


class TableOnDisk(Table, Protocol):
    """One table in a folder of its own."""

    @property
    @abstractmethod
    def folder(self) -> Path: ...

    @abstractmethod
    def versions(self) -> int:
        """How often the table was committed to, as far as it still knows."""

    def added(self) -> Mapping[str, int]:
        """How often the table names each data file."""
        return self._version().added

    def tokens(self) -> Sequence[tuple[str, int, int]]:
        """(query, batch id, version of the table), in the order of the table's history."""
        return self._version().tokens

    def _version(self) -> TableVersion:
        with connect() as connection:
            return self.read(connection)

    def data_files(self) -> set[str]:
        """The data files in the folder, by their paths below it."""
        paths = {path.relative_to(self.folder) for path in self.folder.rglob("*.parquet")}
        return {str(path) for path in paths if "_delta_log" not in path.parts}


class DeltaOnDisk(testing.DeltaTable, TableOnDisk):
    """A Delta table in a folder."""

    @property
    def folder(self) -> Path:
        return Path(self.path)

    def versions(self) -> int:
        return len(list((self.folder / "_delta_log").glob("*[0-9].json")))


class IcebergOnDisk(testing.IcebergTable, TableOnDisk):
    """An Iceberg table in an embedded catalog."""

    def __init__(self, warehouse: Path, name: str = "lake.ids", branch: str = "main") -> None:
        super().__init__(name, warehouse, branch=branch)

    @property
    def folder(self) -> Path:
        return Path(str(self.warehouse)).joinpath(*self.table.split("."))

    @property
    def exists(self) -> bool:
        return self._location() is not None

    def metadata(self) -> dict[str, Any]:
        file = Path(self.metadata_location.removeprefix("file://"))
        metadata: dict[str, Any] = json.loads(file.read_text())
        return metadata

    def versions(self) -> int:
        return len(self.metadata()["snapshots"])
