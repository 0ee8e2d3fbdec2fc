"""A table per example: through options, plan, data files and commit as Spark would, then read by others."""

from __future__ import annotations

import atexit
import itertools
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyspark.sql.types import StructType
from tests.readers import duckdb_with_delta, duckdb_with_iceberg

from penstock.datasource.committing import commit_batch_write
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.file_table import FileTableSink
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink
from penstock.datasource.planning import plan_batch_write
from penstock.datasource.task import TaskAttempt


class LakeTable(Protocol):
    """A table of one example."""

    @property
    def kind(self) -> str: ...

    @property
    def folder(self) -> Path:
        """Where all of its files are."""
        ...

    def sink(self, options: Mapping[str, str]) -> FileTableSink: ...

    @property
    def relation(self) -> str:
        """As duckdb reads it."""
        ...

    def by_polars(self) -> pa.Table: ...


@dataclass(frozen=True)
class Delta:
    folder: Path
    kind: str = "delta"

    def sink(self, options: Mapping[str, str]) -> DeltaSink:
        return DeltaSink(DeltaOptions.parse({"path": str(self.folder), **options}))

    @property
    def relation(self) -> str:
        return f"delta_scan('{self.folder}')"

    def by_polars(self) -> pa.Table:
        return pl.scan_delta(str(self.folder)).collect().to_arrow()


@dataclass(frozen=True)
class Iceberg:
    folder: Path
    kind: str = "iceberg"

    def sink(self, options: Mapping[str, str]) -> IcebergSink:
        given = {"warehouse": str(self.folder), "table": "lake.t"}
        return IcebergSink(IcebergOptions.parse({**given, **options}))

    @property
    def relation(self) -> str:
        return f"iceberg_scan('{self._metadata_location}')"

    @property
    def _metadata_location(self) -> str:
        with closing(sqlite3.connect(self.folder / "catalog.sqlite")) as catalog:
            ((location,),) = catalog.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
        return str(location)

    def by_polars(self) -> pa.Table:
        frame = pl.scan_iceberg(self._metadata_location, reader_override="native")
        return frame.collect().to_arrow()


TABLES: Mapping[str, Callable[[Path], LakeTable]] = {"delta": Delta, "iceberg": Iceberg}


@contextmanager
def new_table(kind: str) -> Iterator[LakeTable]:
    folder = _folder() / str(next(_numbers))
    try:
        yield TABLES[kind](folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_numbers = itertools.count()


@cache
def _folder() -> Path:
    """In memory where there is such a file system: thousands of tables are synchronized to disk."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="penstock-bad-input-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def create_as_declared(
    table: LakeTable,
    schema: pa.Schema | IcebergSchema,
    properties: Mapping[str, str] | None = None,
    partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
) -> None:
    """By the format's own library, with NOT NULL where the schema says so: Penstock never declares it."""
    if table.kind == "delta":
        assert isinstance(schema, pa.Schema)
        DeltaTable.create(str(table.folder), Schema.from_arrow(schema), configuration=dict(properties or {}))
        return
    table.folder.mkdir(parents=True)
    catalog = SqlCatalog(
        "penstock", uri=f"sqlite:///{table.folder}/catalog.sqlite", warehouse=f"file://{table.folder}"
    )
    catalog.create_namespace("lake")
    catalog.create_table("lake.t", schema, partition_spec=partition_spec, properties=dict(properties or {}))
    catalog.close()


def write(table: LakeTable, schema: StructType, rows: Sequence[pa.RecordBatch], **options: str) -> None:
    """One batch, appended by one task.

    Raises:
        PenstockError: refused; no file is left then.
    """
    sink = table.sink(options)
    plan = plan_batch_write(sink, schema, overwrite=False)
    attempt = TaskAttempt(partition=0, attempt=0, run_id="", query_id="", batch_id=None)
    commit_batch_write(sink, [plan.write(rows, attempt)])


@cache
def _connection(kind: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb_with_delta() if kind == "delta" else duckdb_with_iceberg()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def by_duckdb(table: LakeTable, where: str = "true") -> pa.Table:
    query = f"SELECT * FROM {table.relation} WHERE {where}"
    return _connection(table.kind).execute(query).to_arrow_table()


def data_files(table: LakeTable) -> list[Path]:
    """All that are there, named by the table or not."""
    return [path for path in table.folder.rglob("*.parquet") if path.parent.name != "_delta_log"]
