"""Files as one task attempt writes them, and their commit by the Delta library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import Schema
from deltalake.transaction import AddAction, create_table_with_add_actions

from penstock.committers.contract import DataFile
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.file_names import FileNames
from penstock.writers.parquet.write_config import WriteConfig

NAMES = FileNames("query", "run", 7, 3, 12)


def write_all(writer: DataFileWriter, rows: pa.Table, batch_rows: int = 100) -> None:
    for batch in rows.to_batches(max_chunksize=batch_rows):
        writer.write(batch)


def write_as_task(
    plan: WriteConfig,
    rows: pa.Table,
    names: FileNames = NAMES,
    *,
    batch_rows: int = 1000,
    filesystem: Any = None,
) -> tuple[DataFile, ...]:
    """Write rows in batches of at most `batch_rows`, and finish the files."""
    writer = DataFileWriter(plan, names, *([filesystem] if filesystem else []))
    write_all(writer, rows, batch_rows)
    return writer.finish()


def commit(path: str, schema: pa.Schema, files: Sequence[DataFile], **options: Any) -> None:
    adds = [
        AddAction(file.path, file.size_bytes, dict(file.partition_values), 0, True, file.statistics)
        for file in files
    ]
    create_table_with_add_actions(path, Schema.from_arrow(schema), adds, **options)
