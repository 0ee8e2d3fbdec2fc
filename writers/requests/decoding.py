"""Decodes rows that are messages of a source of changes before they are written to the row log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from ...committers.contract import AttemptId, DataFiles
from ..changes.row_kinds import KEPT
from ..row_log.writer import RowLogWriter, RowLogWriters


@dataclass(frozen=True, slots=True)
class DecodingWriters:
    """Opens task writers. Pickled to the executors."""

    writers: RowLogWriters
    decode: Callable[[pa.RecordBatch], pa.RecordBatch]
    """See `RowKinds`."""

    def open(self, attempt: AttemptId) -> DecodingWriter:
        return DecodingWriter(self.writers.open(attempt), self.decode)


class DecodingWriter:
    """See `TaskWriter`."""

    def __init__(self, writer: RowLogWriter, decode: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._writer = writer
        self._decode = decode

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`."""
        self._writer.check_rows(self._decoded(batch))

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: a row is no message, or the destination would not accept a value.
            RetryableError: the file cannot be written.
        """
        if batch.num_rows:
            self._writer.write(self._decoded(batch))

    def finish(self) -> DataFiles:
        return self._writer.finish()

    def abort(self) -> None:
        self._writer.abort()

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that always have the same columns."""
        rows = self._decode(batch)
        if KEPT in rows.schema.names:
            return rows
        return rows.append_column(KEPT, pa.nulls(rows.num_rows, pa.list_(pa.string())))
