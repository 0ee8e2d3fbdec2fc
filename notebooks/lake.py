"""The demo's directory: the source, and for each stream what its store, its table and the disk say of it."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from penstock.committers.contract import Committer, ManifestRecord, Token
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.errors import ConfigurationError
from penstock.committers.iceberg.address import IcebergAddress
from penstock.committers.iceberg.catalog import CatalogConfig
from penstock.committers.iceberg.committer import IcebergTableCommitter
from penstock.committers.store.sql import StreamStatus, open_store
from penstock.datasource.checkpoint import STORE_FILE

MARKER = ".penstock-demo"
BATCHES_MAX = 10_000
ICEBERG_TABLE = ("nyc", "flights")


@dataclass(frozen=True, slots=True)
class Lake:
    """What is below `root`, an absolute path: one source, and two streams that read it."""

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
        """Make the directory, or wipe what an earlier demo left there; nobody else's files.

        Raises:
            FileExistsError: there is something that no demo has made.
        """
        if self.root.exists() and any(self.root.iterdir()) and not (self.root / MARKER).exists():
            raise FileExistsError(
                f"{self.root} has files in it that no demo has made. Name another directory."
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
        """What DuckDB reads the table by, with a reader of its own."""
        return f"{self.format_name.lower()}_scan('{_quoted(self._scanned())}')"

    @abstractmethod
    def _scanned(self) -> str: ...

    @abstractmethod
    def _table(self) -> Committer: ...

    @abstractmethod
    def data_files(self) -> set[Path]:
        """The table's Parquet files on disk, whether the table names them or not."""

    def status(self) -> StreamStatus | None:
        """What the store knows of the stream; None while there is no store or no stream in it."""
        try:
            with open_store(self._store_url, must_exist=True) as store:
                return next(iter(store.streams()), None)
        except ConfigurationError:
            return None

    def batches(self) -> list[ManifestRecord]:
        """All batches that the store knows, in ascending order."""
        with open_store(self._store_url, must_exist=True) as store:
            (stream,) = store.streams()
            return list(reversed(store.history(stream.key, BATCHES_MAX)))

    def token(self) -> Token | None:
        """The stream's last batch, as the table itself has it."""
        status = self.status()
        return None if status is None else self._table().token(status.key.query_id)

    @property
    def _store_url(self) -> str:
        return f"sqlite:///{self.checkpoint / STORE_FILE}"


@dataclass(frozen=True)
class DeltaStream(DemoStream):
    """Into a Delta table, which is a folder."""

    format_name: str = "Delta"

    @property
    def table(self) -> Path:
        return self.root / "delta"

    def _scanned(self) -> str:
        return str(self.table)

    def _table(self) -> Committer:
        return DeltaTableCommitter(str(self.table))

    def data_files(self) -> set[Path]:
        return {path for path in self.table.rglob("*.parquet") if "_delta_log" not in path.parts}


@dataclass(frozen=True)
class IcebergStream(DemoStream):
    """Into an Iceberg table, which is a name in the embedded catalog of a warehouse."""

    format_name: str = "Iceberg"

    @property
    def warehouse(self) -> Path:
        return self.root / "iceberg"

    def _scanned(self) -> str:
        return open_iceberg(self.warehouse, ICEBERG_TABLE).metadata_location

    def _table(self) -> Committer:
        catalog = CatalogConfig.of(None, {}, warehouse=str(self.warehouse))
        return IcebergTableCommitter(catalog, IcebergAddress(catalog.address_name, ICEBERG_TABLE))

    def data_files(self) -> set[Path]:
        return set(self.warehouse.rglob("*.parquet"))


def open_iceberg(warehouse: Path, name: tuple[str, ...]) -> Table:
    """A table in the embedded catalog of `warehouse`, as anyone with pyiceberg opens it."""
    folder = warehouse.resolve()
    catalog = load_catalog(
        "penstock", type="sql", uri=f"sqlite:///{folder}/catalog.sqlite", warehouse=f"file://{folder}"
    )
    return catalog.load_table(name)


def _quoted(text: str) -> str:
    return text.replace("'", "''")
