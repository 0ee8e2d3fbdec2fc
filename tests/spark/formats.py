"""The table of a stream in each format: the options that name it, and what other writers do to it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from tests.tables import DeltaOnDisk, IcebergOnDisk, TableOnDisk

FORMATS = ("delta", "iceberg")


class FileTable(Protocol):
    """A table of one format, in a folder of the test."""

    @property
    def source(self) -> str:
        """The name of Penstock's data source."""
        ...

    @property
    def options(self) -> dict[str, str]:
        """Of the data source: they name the table."""
        ...

    @property
    def place(self) -> str:
        """The option that is a path on the local disk."""
        ...

    @property
    def partitioning(self) -> str:
        """The option for the partitioning of a new table."""
        ...

    @property
    def on_disk(self) -> TableOnDisk: ...

    @property
    def versions_when_new(self) -> int:
        """Iceberg counts snapshots, and a new table has none."""
        ...

    # What others do

    def create(self, schema: pa.Schema) -> None: ...

    def drop(self) -> None: ...

    def append(self, rows: pa.Table) -> None: ...

    def roll_back(self) -> None:
        """To the version that the first batch made."""
        ...


@dataclass(frozen=True)
class DeltaLakeTable:
    folder: Path
    source: str = "penstock.delta"
    place: str = "path"
    partitioning: str = "partitionBy"
    versions_when_new: int = 1

    @property
    def options(self) -> dict[str, str]:
        return {"path": str(self.folder)}

    @property
    def on_disk(self) -> DeltaOnDisk:
        return DeltaOnDisk(self.folder)

    def create(self, schema: pa.Schema) -> None:
        DeltaTable.create(str(self.folder), schema)

    def drop(self) -> None:
        shutil.rmtree(self.folder)

    def append(self, rows: pa.Table) -> None:
        write_deltalake(str(self.folder), rows, mode="append")

    def roll_back(self) -> None:
        DeltaTable(str(self.folder)).restore(1)


@dataclass(frozen=True)
class IcebergLakeTable:
    warehouse: Path
    name: str = "lake.ids"
    source: str = "penstock.iceberg"
    place: str = "warehouse"
    partitioning: str = "partitionSpec"
    versions_when_new: int = 0

    @property
    def options(self) -> dict[str, str]:
        return {"warehouse": str(self.warehouse), "table": self.name}

    @property
    def on_disk(self) -> IcebergOnDisk:
        return IcebergOnDisk(self.warehouse, self.name)

    def catalog(self) -> SqlCatalog:
        """As anybody else would open the embedded catalog."""
        self.warehouse.mkdir(exist_ok=True)
        uri = f"sqlite:///{self.warehouse}/catalog.sqlite"
        return SqlCatalog("penstock", uri=uri, warehouse=f"file://{self.warehouse}")

    def load(self) -> Table:
        return self.catalog().load_table(self.name)

    def create(self, schema: pa.Schema) -> None:
        catalog = self.catalog()
        catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        catalog.create_table(self.name, schema)

    def drop(self) -> None:
        self.catalog().drop_table(self.name)
        shutil.rmtree(self.on_disk.folder)

    def append(self, rows: pa.Table) -> None:
        self.load().append(rows)

    def roll_back(self) -> None:
        table = self.load()
        table.manage_snapshots().rollback_to_snapshot(table.history()[0].snapshot_id).commit()


def lake_table(kind: str, folder: Path) -> FileTable:
    return DeltaLakeTable(folder / "table") if kind == "delta" else IcebergLakeTable(folder / "warehouse")
