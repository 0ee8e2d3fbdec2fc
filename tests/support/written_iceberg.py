"""An Iceberg table for one test: files by the writers, the commit by pyiceberg, read back by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField as IcebergPartitionField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType, NestedField
from tests.support.readers import duckdb_with_iceberg

from penstock.committers.contract import DataFile, PartitionField
from penstock.committers.iceberg.data_files import iceberg_data_files
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.file_names import FileNames
from penstock.writers.parquet.write_config import WriteConfig


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    return duckdb_with_iceberg()


def schema_of(**columns: IcebergType) -> Schema:
    """Top-level columns with field ids from 1 on."""
    return Schema(*[NestedField(i, name, kind) for i, (name, kind) in enumerate(columns.items(), 1)])


class IcebergTable:
    def __init__(self, directory: Path, schema: Schema, partitioning: Sequence[PartitionField] = ()) -> None:
        catalog = SqlCatalog("t", uri="sqlite:///:memory:", warehouse=f"file://{directory}")
        catalog.create_namespace("db")
        fields = [
            IcebergPartitionField(
                schema.find_field(".".join(field.column)).field_id,
                1000 + i,
                parse_transform(field.transform),
                field.name,
            )
            for i, field in enumerate(partitioning)
        ]
        self.table = catalog.create_table("db.t", schema, partition_spec=PartitionSpec(*fields))
        self.schema = schema_to_pyarrow(self.table.schema(), include_field_ids=True)
        self.partitioning = tuple(partitioning)
        self.location = f"{self.table.location()}/data"
        self.attempts = 0

    def plan(self, metrics: Mapping[int, str] | None = None, **options: Any) -> WriteConfig:
        table_format = IcebergFormat(self.partitioning, dict(metrics or {}))
        return WriteConfig(self.location, {}, self.schema, table_format, **options)

    def write(
        self, rows: pa.Table, plan: WriteConfig | None = None, batch_rows: int = 1000
    ) -> tuple[DataFile, ...]:
        """Write with one task attempt of its own and append what it hands back."""
        self.attempts += 1
        names = FileNames("query", "run", 7, 0, self.attempts)
        writer = DataFileWriter(plan or self.plan(), names)
        for batch in rows.to_batches(max_chunksize=batch_rows):
            writer.write(batch)
        files = writer.finish()
        self.append(files)
        return files

    def append(self, files: Sequence[DataFile]) -> None:
        made = iceberg_data_files(files, self.location, self.table.spec(), self.table.schema())
        with self.table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for file in made:
                append.append_data_file(file)

    def path(self, file: DataFile) -> Path:
        return Path(self.location.removeprefix("file://")) / file.path

    def by_duckdb(self, columns: str = "*", where: str = "true") -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM iceberg_scan('{self.table.metadata_location}') WHERE {where}"
        return _duckdb().execute(query).fetchall()

    def by_polars(self, *where: pl.Expr) -> pl.DataFrame:
        """By polars's own reader, which skips files by their bounds and partitions."""
        frame = pl.scan_iceberg(self.table, reader_override="native")
        return (frame.filter(*where) if where else frame).collect()
