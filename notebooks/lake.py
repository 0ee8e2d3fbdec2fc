"""The demo's directory: the source, and for each stream its store, table and files."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from notebooks import store
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

MARKER = ".penstock-demo"
ICEBERG_TABLE = ("nyc", "flights")


@dataclass(frozen=True, slots=True)
class Lake:
    """The directory `root`, an absolute path, with one source and two streams."""

    root: Path

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def log(self) -> Path:
        return self.root / "driver.log"

    @property
    def streams(self) -> tuple[DemoStream, ...]:
        return DeltaStream(self.root), IcebergStream(self.root)

    def empty(self) -> None:
        """Create the directory, or delete the files of an earlier demo.

        Raises:
            FileExistsError: the directory has files of other programs.
        """
        if self.root.exists() and any(self.root.iterdir()) and not (self.root / MARKER).exists():
            raise FileExistsError(
                f"{self.root} has files that the demo did not create. Name another directory."
            )
        if self.root.exists():
            shutil.rmtree(self.root)
        self.root.mkdir(parents=True)
        (self.root / MARKER).touch()


@dataclass(frozen=True)
class DemoStream(ABC):
    """One query that writes one table."""

    root: Path
    format_name: str

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoints" / self.format_name.lower()

    @property
    def relation(self) -> str:
        """The table function with which DuckDB reads the table."""
        return f"{self.format_name.lower()}_scan('{_quoted(self._scanned())}')"

    @abstractmethod
    def _scanned(self) -> str: ...

    @abstractmethod
    def data_files(self) -> set[Path]:
        """Return the Parquet files on disk, in the table or not."""

    def status(self) -> dict[str, Any] | None:
        """Return the stream's status from the store; None if there is no store or no stream yet."""
        return store.status(self.checkpoint)

    def batches(self) -> list[store.Batch]:
        """Return all batches in the store, in ascending order."""
        return store.batches(self.checkpoint)

    def token_batch_id(self, batch_id: int) -> int | None:
        """Return the last batch in the table's token. `batch_id` is any batch of the stream."""
        return store.token_batch_id(self.checkpoint, batch_id)


@dataclass(frozen=True)
class DeltaStream(DemoStream):
    """Writes a Delta table, which is a folder."""

    format_name: str = "Delta"

    @property
    def table(self) -> Path:
        return self.root / "delta"

    def _scanned(self) -> str:
        return str(self.table)

    def data_files(self) -> set[Path]:
        return {path for path in self.table.rglob("*.parquet") if "_delta_log" not in path.parts}


@dataclass(frozen=True)
class IcebergStream(DemoStream):
    """Writes an Iceberg table, which is a name in the embedded catalog of a warehouse."""

    format_name: str = "Iceberg"

    @property
    def warehouse(self) -> Path:
        return self.root / "iceberg"

    def _scanned(self) -> str:
        return open_iceberg(self.warehouse, ICEBERG_TABLE).metadata_location

    def data_files(self) -> set[Path]:
        return set(self.warehouse.rglob("*.parquet"))


def open_iceberg(warehouse: Path, name: tuple[str, ...]) -> Table:
    """Open a table in the embedded catalog of `warehouse` with pyiceberg."""
    folder = warehouse.resolve()
    catalog = load_catalog(
        "penstock", type="sql", uri=f"sqlite:///{folder}/catalog.sqlite", warehouse=f"file://{folder}"
    )
    return catalog.load_table(name)


def _quoted(text: str) -> str:
    return text.replace("'", "''")
