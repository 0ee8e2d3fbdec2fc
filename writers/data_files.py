"""The data files of one task attempt: rolled at the target size, invisible until committed."""

from __future__ import annotations

import contextlib
import posixpath
from collections import OrderedDict
from dataclasses import dataclass

import pyarrow as pa
from pyarrow.fs import FileSystem, FileType, LocalFileSystem

from ..committers.contract import DataFile
from ..committers.crash_points import reach
from ..committers.errors import RetryableError
from .buffers import RowBuffers, RowGroup
from .conform import Conformer
from .encodings import SAMPLE_ROWS, choose_encodings, fits
from .filesystem import make_durable
from .parquet_file import Encodings, OpenParquetFile
from .plan import FileNames, WritePlan
from .table_format import FileStatistics, Values

FULL = 0.9
"""A file this close to the target size is closed: what still fits would be a sliver of a row group."""


@dataclass(slots=True)
class _OpenFile:
    path: str
    parquet: OpenParquetFile
    statistics: FileStatistics
    rows: int = 0


class DataFileWriter:
    """Writes the rows of one task attempt into closed, durable data files that no table names yet.

    Runs on an executor: one instance per task attempt, `write` per Arrow batch, then `close`, or `abort`
    if the task fails. Files lie under the plan's location, where the table format puts each.

    Memory: rows wait up to `buffer_bytes_max`; splitting, sorting and encoding take up to three times as much
    again. The peak stays below 4 x `buffer_bytes_max` + 48 MiB plus the largest batch that arrives, however
    many rows and table partitions there are. On an object store the client's upload buffers come on top.
    """

    def __init__(
        self,
        plan: WritePlan,
        names: FileNames,
        location: tuple[FileSystem, str] | None = None,
        partition: Values | None = None,
    ) -> None:
        """
        Args:
            location: the file system and the data files' root in it; by default as the plan says
            partition: the table partition that all rows are of, if they come from data files: with the
                columns that such files have, and nobody splits them again. None: of any, with all columns
        """
        self._plan = plan
        self._names = names
        self._format = plan.table_format
        self._filesystem, self._root = location or self._format.open_filesystem(
            plan.location, plan.storage_options
        )
        self._row_schema = plan.row_schema
        self._file_schema = plan.file_schema
        self._new_statistics = self._format.file_statistics(self._row_schema)
        self._conform = Conformer(self._row_schema if partition is None else self._file_schema, str(names))
        self._buffers = RowBuffers(plan, str(names), partition)
        self._open: OrderedDict[Values, _OpenFile] = OrderedDict()
        self._paths: list[str] = []
        self._files: list[DataFile] = []
        self._directories: set[str] = set()
        self._encodings: Encodings | None = None
        self._arrow_bytes = 0.0
        self._file_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows in.

        Raises:
            SchemaMismatchError: the rows do not fit the table. Nothing of them is written.
        """
        if batch.num_rows:
            for group in self._buffers.add(self._conform(batch)):
                self._write(group)

    def close(self) -> tuple[DataFile, ...]:
        """Write what waits and close all files; they survive a loss of power. No rows, no file."""
        for group in self._buffers.settle():
            self._write(group)
        for values in sorted(self._buffers.waiting(), key=lambda values: values not in self._open):
            self._write(self._buffers.take(values))
            self._close(values)
        for values in list(self._open):
            self._close(values)
        make_durable(self._filesystem, self._root, self._paths)
        reach("write.files_closed", self._names.batch_id)
        return tuple(self._files)

    def abort(self) -> None:
        """Delete what this attempt wrote. Never raises: the error that led here is the one to see.

        What cannot be deleted is an orphan, which clean-up finds by its name.
        """
        for file in self._open.values():
            file.parquet.discard()
        self._open.clear()
        for path in self._paths:
            with contextlib.suppress(Exception):
                self._filesystem.delete_file(posixpath.join(self._root, path))

    def _write(self, group: RowGroup) -> None:
        """Append rows to the partition's file, in as many row groups and files as the bounds ask for."""
        rows = group.rows
        row_bytes = group.size_bytes / rows.num_rows
        start = 0
        while start < rows.num_rows:
            file = self._file(group.values, rows)
            count = self._rows_that_fit(row_bytes, file.parquet.size_bytes)
            self._write_row_group(file, rows.slice(start, count), row_bytes)
            start += count
            if file.parquet.size_bytes >= self._plan.target_file_bytes * FULL:
                self._close(group.values)

    def _rows_that_fit(self, row_bytes: float, used_bytes: int) -> int:
        """How many of such rows fill a row group or the file, by how well rows were compressed so far."""
        ratio = self._file_bytes / self._arrow_bytes if self._arrow_bytes else 1.0
        row_bytes = max(row_bytes * ratio, 0.001)
        room_bytes = self._plan.target_file_bytes - used_bytes
        group_bytes = min(room_bytes, self._plan.row_group_bytes or room_bytes)
        return min(max(int(group_bytes / row_bytes), 1), self._plan.row_group_rows)

    def _write_row_group(self, file: _OpenFile, rows: pa.Table, row_bytes: float) -> None:
        before = file.parquet.size_bytes
        file.statistics.add(rows)
        file.parquet.write_row_group(rows)
        file.rows += rows.num_rows
        self._arrow_bytes += row_bytes * rows.num_rows
        if self._file_bytes == 0:
            reach("write.file_open", self._names.batch_id)
        self._file_bytes += file.parquet.size_bytes - before

    def _file(self, values: Values, rows: pa.Table) -> _OpenFile:
        """The partition's open file, or a new one; then the least recently used one makes room."""
        if values in self._open:
            self._open.move_to_end(values)
            return self._open[values]
        if len(self._open) >= self._plan.max_open_partitions:
            self._close(next(iter(self._open)))
        path = self._new_path(values)
        sink = self._filesystem.open_output_stream(posixpath.join(self._root, path))
        parquet = OpenParquetFile(sink, self._file_schema, self._plan, self._encodings_for(rows))
        self._open[values] = _OpenFile(path, parquet, self._new_statistics())
        return self._open[values]

    def _encodings_for(self, rows: pa.Table) -> Encodings:
        """Chosen by the first rows, of any table partition, and again only if those were few."""
        if self._encodings is None or not fits(self._encodings, rows.num_rows):
            others = self._buffers.some_rows(SAMPLE_ROWS - rows.num_rows)
            known = pa.Table.from_batches([*rows.to_batches(), *others])
            self._encodings = choose_encodings(self._plan, known, rows.num_rows)
        return self._encodings

    def _new_path(self, values: Values) -> str:
        name = self._names.name(len(self._paths), self._plan.compression)
        path = self._format.data_path(values, str(name))
        full_path = posixpath.join(self._root, path)
        parent = posixpath.dirname(full_path)
        if isinstance(self._filesystem, LocalFileSystem) and parent not in self._directories:
            self._filesystem.create_dir(parent)
            self._directories.add(parent)
        if self._filesystem.get_file_info(full_path).type != FileType.NotFound:
            raise RetryableError(
                f"The file {path} exists already ({self._names}); another task attempt has written under"
                " the same ids. Nothing was overwritten. Start the query again: its run id makes new names."
            )
        self._paths.append(path)
        return path

    def _close(self, values: Values) -> None:
        file = self._open.get(values)
        if file is None:
            return
        footer = file.parquet.close()
        del self._open[values]
        self._files.append(
            DataFile(file.path, file.parquet.size_bytes, file.rows, values, file.statistics.to_json(footer))
        )
