"""Writes the rows of one task attempt with pypaimon. Executors only."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...committers.cleaning.regular_files import sync
from ...committers.contract import AttemptId, DataFile, DataFiles
from ...committers.crash_points import reach
from ...committers.errors import PenstockError
from ...committers.file_tables.evolution import Narrowing
from ...committers.texts.safe_text import get_logger
from ..delta.partitions import check_folder_value
from ..parquet.file_names import FileNames
from ..parquet.schema_projection import SchemaProjector
from ..partition import not_written
from .names import file_prefix

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PaimonWriters:
    """Opens task writers. Pickled to the executors."""

    path: str
    """The table on a disk that executors share."""
    table_schema_json: str
    """Paimon's own form of the schema."""
    schema: pa.Schema
    target_file_bytes: int
    """Size of the rows in one file, as Arrow data."""
    buffer_bytes_max: int
    """Size of the rows of all open partitions, as Arrow data."""
    narrows: Narrowing = Narrowing.NONE
    """See `SchemaProjector`."""

    def open(self, attempt: AttemptId) -> PaimonWriter:
        return PaimonWriter(self, attempt)

    @property
    def partition_by(self) -> list[str]:
        keys: list[str] = json.loads(self.table_schema_json).get("partitionKeys", [])
        return keys

    def open_table(self, names: FileNames) -> Any:
        """Return the table of pypaimon, with the options of a writer whose files have these names."""
        from pypaimon.common.file_io import FileIO
        from pypaimon.common.identifier import Identifier
        from pypaimon.common.json_util import JSON
        from pypaimon.common.options import Options
        from pypaimon.schema.table_schema import TableSchema
        from pypaimon.table.file_store_table import FileStoreTable

        schema = JSON.from_json(self.table_schema_json, TableSchema)
        file_io = FileIO.get(self.path, Options({}))
        table = FileStoreTable(file_io, Identifier("default", "table"), self.path, schema)
        return table.copy(
            {
                "data-file.prefix": file_prefix(names),
                "target-file-size": f"{min(self.target_file_bytes, self.buffer_bytes_max)}b",
                # In Arrow's statistics, NaN is neither the minimum nor the maximum: readers would skip rows.
                "metadata.stats-mode": "none",
                "write.native.enabled": "false",
            }
        )

    def fitting(self, project: SchemaProjector, batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
        """Return rows in the table's schema.

        Args:
            where: names the attempt in messages

        Raises:
            SchemaMismatchError: a value does not fit the table, or cannot be a partition value.
        """
        rows = project(batch)
        self.check_places(rows, where)
        return rows

    def check_places(self, rows: pa.RecordBatch | pa.Table, where: str) -> None:
        """
        Raises:
            SchemaMismatchError: a value cannot be a partition value.
        """
        for name in self.partition_by:
            for value in rows.column(name).unique():
                check_folder_value(name, value, where)

    def data_file(self, table: Any, partition: Sequence[Any], bucket: int, file: Any) -> DataFile:
        """Make a file of pypaimon durable, and return its entry in the manifest."""
        from pypaimon.write.commit_message import CommitMessage
        from pypaimon.write.commit_message_serializer import serialize_commit_message

        path = Path(file.physical_path())
        for new in (path, path.parent):
            sync(new)
        alone = CommitMessage(partition=tuple(partition), bucket=bucket, new_files=[file])
        entry = base64.b64encode(serialize_commit_message(alone, table.partition_keys_fields)).decode()
        relative = path.relative_to(self.path).as_posix()
        return DataFile(relative, file.file_size, file.row_count, (), entry)


class PaimonWriter:
    """See `TaskWriter`. pypaimon holds the rows of a file until it writes the file at once, so a file has at
    most `buffer_bytes_max` of rows.
    """

    def __init__(self, plan: PaimonWriters, attempt: AttemptId) -> None:
        self._plan = plan
        self._attempt = attempt
        where = f"batch {attempt.batch_id}, partition {attempt.partition}, attempt {attempt.attempt}"
        self._where = where
        self._project = SchemaProjector(plan.schema, where, narrows=plan.narrows)
        self._table: Any = None
        self._write: Any = None
        self._buffered = 0
        self._files: list[DataFile] = []
        self._checked: tuple[pa.RecordBatch, pa.RecordBatch] | None = None
        """The last batch that was checked, and its rows."""

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        self._checked = (batch, self._fitting(batch))

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        checked, self._checked = self._checked, None
        rows = checked[1] if checked is not None and checked[0] is batch else self._fitting(batch)
        try:
            if self._write is None:
                self._open()
            self._write.write_arrow_batch(rows)
        except Exception as error:
            raise self._failed(error) from error
        self._buffered += rows.nbytes
        if self._buffered >= self._plan.buffer_bytes_max:
            self._flush()

    def finish(self) -> DataFiles:
        if self._write is not None:
            self._flush()
        if self._files:
            reach("write.files_closed", self._attempt.batch_id)
        return tuple(self._files)

    def abort(self) -> None:
        """Delete the files of this attempt."""
        try:
            if self._write is not None:
                self._write.abort()
            for file in self._files:
                Path(self._plan.path, file.path).unlink()
        except Exception as error:  # noqa: BLE001  never raises
            logger.warning("Files of %s are left to penstock gc: %s", self._attempt, error)

    def _fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._plan.fitting(self._project, batch, self._where)

    def _open(self) -> None:
        self._table = self._plan.open_table(FileNames.of(self._attempt))
        self._write = self._table.new_stream_write_builder().new_write()
        reach("write.file_open", self._attempt.batch_id)

    def _flush(self) -> None:
        """Write the buffered rows of all partitions, and make the files durable."""
        try:
            messages = self._write.prepare_commit(self._attempt.batch_id)
            self._files += [
                self._plan.data_file(self._table, message.partition, message.bucket, file)
                for message in messages
                for file in message.new_files
            ]
        except Exception as error:
            raise self._failed(error) from error
        self._buffered = 0

    def _failed(self, error: Exception) -> PenstockError:
        if isinstance(error, PenstockError):
            return error
        return not_written(error, self._attempt, self._plan.path)
