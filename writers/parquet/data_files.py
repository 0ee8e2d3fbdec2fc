"""Data files of one task attempt: writes the arriving rows to durable files that are not committed yet."""

from __future__ import annotations

import sys

import pyarrow as pa
from pyarrow.fs import FileSystem

from ...committers.contract import DataFiles
from ...committers.crash_points import reach
from ..background import Background
from .buffers import RowBuffers, RowGroup
from .data_file_config import DataFileConfig
from .encodings import SAMPLE_ROWS, choose_encodings, fits
from .file import Encodings
from .file_names import FileNames
from .open_files import OpenFiles
from .partition_check import split_rows
from .schema_projection import SchemaProjector
from .table_format import ChecksValues, OpensFiles, PartitionValues

ARRAY_BYTES_MAX = 2**31 - 1
"""Limit for strings in one array: offsets have 32 bits."""


class DataFileWriter:
    """Writes the rows of one task attempt to closed, durable data files that are not committed yet.

    Runs on an executor: one instance per task attempt; `write` per Arrow batch, then `finish`, or `abort` if
    the task fails. Files are below the config's location, in paths chosen by the table format. Rows are
    collected up to a quarter of `buffer_bytes_max`, or up to a row group if all are in one table partition.
    Then they are split by table partition, and full row groups are encoded in a background thread while the
    caller prepares the next rows. An error there is raised by a later call.

    Memory: buffered rows take up to `buffer_bytes_max`; splitting, sorting and encoding take up to three
    times as much in addition. The peak stays below 4 x `buffer_bytes_max` + 80 MiB plus the largest arriving
    batch, for any number of rows and table partitions. On an object store, pending uploads take up to twice
    `buffer_bytes_max` in addition.
    """

    def __init__(
        self,
        config: DataFileConfig,
        names: FileNames,
        location: tuple[FileSystem, str] | None = None,
        partition: PartitionValues | None = None,
    ) -> None:
        """
        Args:
            location: the file system and the root of the data files in it; by default from the config
            partition: the table partition of all rows, for rows read from data files: they have only the
                columns of such files and are not split again. None: any partition, all columns
        """
        self._config = config
        self._names = names
        filesystem, root = location or config.table_format.open_filesystem(
            config.location, config.storage_options
        )
        self._project = SchemaProjector(
            config.row_schema if partition is None else config.file_schema,
            str(names),
            narrows=config.narrows,
        )
        table_format = config.table_format
        self._check_values = table_format.check_values if isinstance(table_format, ChecksValues) else None
        self._is_parquet = not isinstance(table_format, OpensFiles)
        self._buffers = RowBuffers(config, str(names), partition)
        self._files = OpenFiles(config, names, filesystem, root)
        self._background = Background("penstock-writer")
        self._arrived: list[pa.RecordBatch] = []
        self._arrived_rows = self._arrived_bytes = 0
        self._arrived_rows_max = sys.maxsize if self._buffers.is_split else config.row_group_rows
        self._arrived_bytes_max = min(config.buffer_bytes_max // 4, ARRAY_BYTES_MAX)
        self._encodings: Encodings | None = None
        self._checked: tuple[pa.RecordBatch, pa.RecordBatch] | None = None
        """The last batch that was checked, and its rows in the table's schema."""

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """See `ChecksRows`. Partition values are checked too, which `write` does later."""
        rows = self._projected(batch)
        if self._buffers.is_split:
            for _ in split_rows(self._config, pa.Table.from_batches([rows]), str(self._names)):
                pass
        self._checked = (batch, rows)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Raises:
            SchemaMismatchError: the rows do not fit the table. None of them is written.
        """
        if batch.num_rows == 0:
            return
        checked, self._checked = self._checked, None
        rows = checked[1] if checked is not None and checked[0] is batch else self._projected(batch)
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
        """Write buffered rows and close all files, so that they survive a power failure. Without rows there
        is no file.
        """
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
        """Delete the files of this attempt. Never raises, so that the original error is reported.

        Files that cannot be deleted are orphans, which clean-up finds by their names.
        """
        self._background.stop()
        self._files.delete_all()

    def _projected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = self._project(batch)
        if self._check_values is not None:
            self._check_values(rows)
        return rows

    def _hand_over(self) -> list[pa.RecordBatch]:
        arrived, self._arrived = self._arrived, []
        self._arrived_rows = self._arrived_bytes = 0
        return arrived

    def _take_in(self, batches: list[pa.RecordBatch]) -> None:
        for group in self._buffers.add(batches):
            self._files.write(group, self._encodings_for(group))

    def _encodings_for(self, group: RowGroup) -> Encodings:
        """Chosen by the first rows of any table partition, and again for row groups that are much larger."""
        rows = group.rows
        if not self._is_parquet:
            return Encodings([], [], [], rows=0)
        if self._encodings is None or not fits(self._encodings, rows.num_rows):
            others = self._buffers.some_rows(SAMPLE_ROWS - rows.num_rows)
            known = pa.Table.from_batches([*rows.to_batches(), *others])
            known = self._files.stored(known, str(self._names.name(0, self._config.compression)), 0)
            self._encodings = choose_encodings(self._config, known, rows.num_rows)
        return self._encodings
