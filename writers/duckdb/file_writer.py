"""Writes the rows of one task attempt to a file beside the database. Executors only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ...committers.contract import AttemptId
from ...committers.crash_points import reach
from ...committers.database.staging import ROW, StagingTable, StagingTables, staging_name
from ...committers.duckdb import staged_files
from ...committers.errors import RetryableError
from ..database.staging_writer import DatabaseWriters
from .value_checks import check_times

ROW_GROUP_ROWS = 122_880
"""As many as DuckDB's own row groups have."""
ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Rows that are held in memory."""


@dataclass(frozen=True, slots=True)
class DuckDbWriters(DatabaseWriters):
    """See `DatabaseWriters`. `schema` is the folder of the files of all queries."""

    def check(self, rows: pa.RecordBatch) -> None:
        for column, name in zip(rows.columns, rows.schema.names, strict=True):
            check_times(column, name)

    def open(self, attempt: AttemptId) -> FileWriter:
        return FileWriter(self, attempt)


class FileWriter:
    """See `TaskWriter`. The file gets its name when it is complete and durable. A task without rows writes
    none. Holds one row group in memory.
    """

    def __init__(self, plan: DuckDbWriters, attempt: AttemptId) -> None:
        self._plan = plan
        self._query_id, self._batch_id = attempt.query_id, attempt.batch_id
        self._name = staging_name(attempt, plan.table_sql)
        self._path = Path(plan.schema, attempt.query_id, self._name + staged_files.UNFINISHED)
        self._project = plan.projector(attempt)
        self._file: BinaryIO | None = None
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = self._rows = 0

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        self._plan.check(self._project(batch))

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: the table cannot store a value.
            RetryableError: the file cannot be written.
        """
        rows = self._project(batch)
        self._plan.check(rows)
        if not rows.num_rows:
            return
        if self._writer is None:
            self._open(rows.schema)
        first = self._rows + self._waiting_rows
        numbers = pa.array(range(first, first + rows.num_rows), pa.int64())
        self._waiting.append(rows.append_column(ROW, numbers))
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def finish(self) -> StagingTables:
        if self._writer is None or self._file is None:
            return ()
        self._write_group()
        with self._errors():
            self._writer.close()
            self._file.close()
            size = self._path.stat().st_size
            staged_files.publish(self._path)
        reach("write.files_closed", self._batch_id)
        return (StagingTable(self._query_id, self._name, self._rows, size),)

    def abort(self) -> None:
        for open_one in (self._writer, self._file):
            with suppress(OSError, pa.ArrowException):
                if open_one is not None:
                    open_one.close()
        with suppress(OSError):
            staged_files.delete(self._plan.schema, [StagingTable(self._query_id, self._name, 0, 0)])

    def _open(self, schema: pa.Schema) -> None:
        with self._errors():
            self._file = staged_files.open_new(self._plan.schema, self._query_id, self._path)
            with_number = schema.append(pa.field(ROW, pa.int64(), nullable=False))
            self._writer = pq.ParquetWriter(self._file, with_number, compression="zstd", version="2.6")
        reach("write.file_open", self._batch_id)

    def _write_group(self) -> None:
        if self._writer is None or not self._waiting:
            return
        with self._errors():
            self._writer.write_table(pa.Table.from_batches(self._waiting).cast(self._writer.schema))
        self._rows += self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RetryableError(
                f"The rows of a task cannot be written to {self._path}: {error}. Free space on the disk, and "
                "check that all executors see the folder of the database under this path, and may write it."
            ) from error
