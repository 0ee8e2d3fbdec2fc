"""Write with the data file writer, commit with the Delta library, read with others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from deltalake import Schema
from deltalake.transaction import AddAction, create_table_with_add_actions
from tests.support.plans import delta_plan

from penstock.committers.contract import DataFile
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.write_config import FileNames

WriteFiles: TypeAlias = Callable[..., tuple[DataFile, ...]]
WriteTable: TypeAlias = Callable[..., str]


def write_one(
    path: str, rows: pa.Table, schema: pa.Schema | None = None, partition: int = 0, **options: Any
) -> tuple[DataFile, ...]:
    plan = delta_plan(path, schema or rows.schema, **options)
    writer = DataFileWriter(plan, FileNames("query", "run", 7, partition, 12))
    for batch in rows.to_batches(max_chunksize=1000):
        writer.write(batch)
    return writer.finish()


def commit(path: str, schema: pa.Schema, files: Sequence[DataFile], **options: Any) -> None:
    adds = [
        AddAction(file.path, file.size_bytes, dict(file.partition_values), 0, True, file.statistics)
        for file in files
    ]
    create_table_with_add_actions(path, Schema.from_arrow(schema), adds, **options)


@pytest.fixture
def write_files(tmp_path: Path) -> WriteFiles:
    """`write_files(rows, schema=None, partition=0, **plan)`: what one task attempt hands back."""

    def write(rows: pa.Table, schema: pa.Schema | None = None, **options: Any) -> tuple[DataFile, ...]:
        return write_one(str(tmp_path), rows, schema, **options)

    return write


@pytest.fixture
def write_table(tmp_path_factory: pytest.TempPathFactory) -> WriteTable:
    """`write_table(tables, **plan)`: a new Delta table, at least a file for each table; its path."""

    def write(tables: Sequence[pa.Table], **options: Any) -> str:
        path = str(tmp_path_factory.mktemp("table"))
        files = [
            file
            for partition, rows in enumerate(tables)
            for file in write_one(path, rows, partition=partition, **options)
        ]
        partition_by = list(options.get("partition_by", ()))
        commit(path, tables[0].schema, files, partition_by=partition_by)
        return path

    return write
