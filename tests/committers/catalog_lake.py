"""A table in a catalog that is a server, as the tests of catalogs see it: straight from there."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from tests.committers.lakes import named_files
from tests.readers import iceberg_rows


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def local(location: str) -> Path:
    return Path(re.sub("^file:(//)?", "", location))


class CatalogLake(ABC):
    """One table in a namespace of its own."""

    def __init__(self, folder: Path) -> None:
        self.namespace = f"n{uuid.uuid4().hex}"
        self._store_url = f"sqlite:///{folder}/store.db"

    @property
    def name(self) -> str:
        return f"{self.namespace}.ids"

    @property
    @abstractmethod
    def catalog(self) -> Catalog: ...

    def load(self) -> Table:
        return self.catalog.load_table(self.name)

    def ids(self, branch: str = "main") -> list[int]:
        """As duckdb reads them. polars finds the same, and every file of every snapshot is there."""
        table = self.load()
        assert [name for name in named_files(table) if not local(name).exists()] == []
        snapshot = table.metadata.refs[branch].snapshot_id
        by_duckdb = iceberg_rows(f"{table.metadata_location}', snapshot_from_id='{snapshot}", "id")
        by_polars = pl.scan_iceberg(table, snapshot_id=snapshot, reader_override="native").collect()
        assert sorted(by_polars["id"].to_list()) == [identifier for (identifier,) in by_duckdb]
        return [int(str(identifier)) for (identifier,) in by_duckdb]

    def metadata_files(self) -> set[str]:
        """Manifests and lists of manifests that lie there."""
        return {path.name for path in local(self.load().location()).rglob("*.avro")}

    def append(self, *values: int) -> None:
        self.load().append(ids(*values))
