"""The data files of one task attempt: from the rows that arrive to durable files that no table names yet."""

from __future__ import annotations

import sys

import pyarrow as pa
from pyarrow.fs import FileSystem

from ...committers.contract import DataFiles
from ...committers.crash_points import reach
from ..background import Background
from .buffers import RowBuffers, RowGroup
from .encodings import SAMPLE_ROWS, choose_encodings, fits
from .file import Encodings
from .open_files import OpenFiles
from .schema_projection import SchemaProjector
from .table_format import PartitionValues
from .write_config import FileNames, WriteConfig

ARRAY_BYTES_MAX = 2**31 - 1
"""Of texts in one array: their offsets have 32 bits."""


class DataFileWriter:
    """Writes the rows of one task attempt into closed, durable data files that no table names yet.

    Runs on an executor: one instance per task attempt, `write` per Arrow batch, then `finish`, or `abort`
    if the task fails. Files lie under the plan's location, where the table format puts each. Rows gather
    until they are a quarter of `buffer_bytes_max`, or a row group if all are of one table partition. Then
    they are split by table partition, and what is due is encoded, beside the caller, who meanwhile brings
    the next rows: an error there comes with a later call.

    Memory: rows wait up to `buffer_bytes_max`; splitting, sorting and encoding take up to three times as much
    again. The peak stays below 4 x `buffer_bytes_max` + 80 MiB plus the largest batch that arrives, however
    many rows and table partitions there are. On an object store what waits for its upload comes on top, up to
    twice `buffer_bytes_max`.
    """

    def __init__(
        self,
        plan: WriteConfig,
        names: FileNames,
        location: tuple[FileSystem, str] | None = None,
        partition: PartitionValues | None = None,
    ) -> None:
        """
        Args:
            location: the file system and the data files' root in it; by default as the plan says
            partition: the table partition that all rows are of, if they come from data files: with the
                columns that such files have, and nobody splits them again. None: of any, with all columns
        """
        self._plan = plan
        self._names = names
        filesystem, root = location or plan.table_format.open_filesystem(plan.location, plan.storage_options)
        self._project = SchemaProjector(
            plan.row_schema if partition is None else plan.file_schema, str(names)
        )
        self._buffers = RowBuffers(plan, str(names), partition)
        self._files = OpenFiles(plan, names, filesystem, root)
        self._background = Background("penstock-writer")
        self._arrived: list[pa.RecordBatch] = []
        self._arrived_rows = self._arrived_bytes = 0
        is_split = partition is None and plan.table_format.is_partitioned
        self._arrived_rows_max = sys.maxsize if is_split else plan.row_group_rows
        self._arrived_bytes_max = min(plan.buffer_bytes_max // 4, ARRAY_BYTES_MAX)
        self._encodings: Encodings | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows in.

        Raises:
            SchemaMismatchError: the rows do not fit the table. Nothing of them is written.
        """
        if batch.num_rows == 0:
            return
        rows = self._project(batch)
        size = rows.nbytes
        if (
            self._arrived_bytes + size > self._arrived_bytes_max
            or self._arrived_rows + rows.num_rows > self._arrived_rows_max
        ):
            self._background.start(self._take_in, self._hand_over())
        self._arrived.append(rows)
        self._arrived_rows += rows.num_rows
        self._arrived_bytes += size

    def finish(self) -> DataFiles:
        """Write what waits and close all files; they survive a loss of power. No rows, no file."""
        self._background.wait()
        self._background.stop()
        self._take_in(self._hand_over())
        for values in sorted(self._buffers.waiting(), key=lambda values: values not in self._files):
            group = self._buffers.take(values)
            self._files.write(group, self._encodings_for(group))
            self._files.close(values)
        files = self._files.finish()
        reach("write.files_closed", self._names.batch_id)
        return files

    def abort(self) -> None:
        """Delete what this attempt wrote. Never raises: the error that led here is the one to see.

        What cannot be deleted is an orphan, which clean-up finds by its name.
        """
        self._background.stop()
        self._files.delete_all()

    def _hand_over(self) -> list[pa.RecordBatch]:
        arrived, self._arrived = self._arrived, []
        self._arrived_rows = self._arrived_bytes = 0
        return arrived

    def _take_in(self, batches: list[pa.RecordBatch]) -> None:
        for group in self._buffers.add(batches):
            self._files.write(group, self._encodings_for(group))

    def _encodings_for(self, group: RowGroup) -> Encodings:
        """Chosen by the first rows, of any table partition, and anew for row groups that are much larger."""
        rows = group.rows
        if self._encodings is None or not fits(self._encodings, rows.num_rows):
            others = self._buffers.some_rows(SAMPLE_ROWS - rows.num_rows)
            known = pa.Table.from_batches([*rows.to_batches(), *others])
            self._encodings = choose_encodings(self._plan, known, rows.num_rows)
        return self._encodings
