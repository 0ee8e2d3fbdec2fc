"""The data files that a task attempt is writing: one for each table partition, rolled at the target size."""

from __future__ import annotations

import contextlib
import posixpath
import resource
import sys
from dataclasses import dataclass

import pyarrow as pa
from pyarrow.fs import FileSystem, FileType, LocalFileSystem

from ..committers.contract import DataFile
from ..committers.crash_points import reach
from ..committers.errors import RetryableError
from .buffers import RowGroup
from .parquet_file import Encodings, OpenParquetFile
from .plan import FileNames, WritePlan
from .table_format import FileStatistics, Values

FULL = 0.9
"""A file this close to the target size is closed: what still fits would be a sliver of a row group."""

MEMORY_BYTES_MIN = 16 * 1024 * 1024
"""That open files may take, however small the buffers are."""

UPLOAD_BYTES = 10 * 1024 * 1024
"""Of an open file on an object store at most wait in memory: so large is a part of Arrow's uploads."""


@dataclass(slots=True)
class _OpenFile:
    path: str
    parquet: OpenParquetFile
    statistics: FileStatistics
    rows: int = 0


class OpenFiles:
    """Makes files of row groups. Not to be used by two threads at a time.

    One file for each table partition, as far as memory goes: an open file keeps its footer, with an entry for
    each column of each row group, and on an object store what waits for its upload. Where that is too much,
    or there are too many files, those that take most are closed. Not the least recently used: rows of all
    partitions come in turn, so each would be closed just before its next row group.
    """

    def __init__(self, plan: WritePlan, names: FileNames, filesystem: FileSystem, root: str) -> None:
        self._plan = plan
        self._names = names
        self._filesystem = filesystem
        self._root = root
        self._schema = plan.file_schema
        self._new_statistics = plan.table_format.file_statistics(plan.row_schema)
        self._open: dict[Values, _OpenFile] = {}
        self._open_max = min(plan.max_open_partitions, _files_per_process() // 2)
        self._is_local = isinstance(filesystem, LocalFileSystem)
        self._memory_bytes = 0
        share = 3 / 8 if self._is_local else 2
        self._memory_bytes_max = max(plan.buffer_bytes_max * share, MEMORY_BYTES_MIN)
        self._directories: set[str] = set()
        self._arrow_bytes = 0.0
        self._file_bytes = 0
        self.paths: list[str] = []
        """Of all files so far, relative to the root."""
        self.closed: list[DataFile] = []

    def __contains__(self, values: Values) -> bool:
        """Is there an open file of this table partition?"""
        return values in self._open

    def write(self, group: RowGroup, encodings: Encodings) -> None:
        """Append rows to the partition's file, in as many row groups and files as the bounds ask for.

        `encodings` are for files that are yet to be opened.
        """
        rows = group.rows
        row_bytes = group.size_bytes / rows.num_rows
        start = 0
        while start < rows.num_rows:
            file = self._file(group.values, encodings)
            count = self._rows_that_fit(row_bytes, file.parquet.size_bytes)
            self._write_row_group(file, rows.slice(start, count), row_bytes)
            self._make_room()
            start += count
            if file.parquet.size_bytes >= self._plan.target_file_bytes * FULL:
                self.close(group.values)

    def close(self, values: Values) -> None:
        """The file of one table partition, if one is open."""
        file = self._open.get(values)
        if file is None:
            return
        self._memory_bytes -= self._memory_of(file)
        footer = file.parquet.close()
        del self._open[values]
        self.closed.append(
            DataFile(file.path, file.parquet.size_bytes, file.rows, values, file.statistics.to_json(footer))
        )

    def close_all(self) -> None:
        for values in list(self._open):
            self.close(values)

    def delete_all(self) -> None:
        """All files so far, open or closed. Never raises: what cannot be deleted is an orphan."""
        for file in self._open.values():
            file.parquet.discard()
        self._open.clear()
        for path in self.paths:
            with contextlib.suppress(Exception):
                self._filesystem.delete_file(posixpath.join(self._root, path))

    def _rows_that_fit(self, row_bytes: float, used_bytes: int) -> int:
        """How many of such rows fill a row group or the file, by how well rows were compressed so far."""
        ratio = self._file_bytes / self._arrow_bytes if self._arrow_bytes else 1.0
        row_bytes = max(row_bytes * ratio, 0.001)
        room_bytes = self._plan.target_file_bytes - used_bytes
        group_bytes = min(room_bytes, self._plan.row_group_bytes or room_bytes)
        return min(max(int(group_bytes / row_bytes), 1), self._plan.row_group_rows)

    def _write_row_group(self, file: _OpenFile, rows: pa.Table, row_bytes: float) -> None:
        before, memory_before = file.parquet.size_bytes, self._memory_of(file)
        file.statistics.add(rows)
        file.parquet.write_row_group(rows)
        file.rows += rows.num_rows
        self._memory_bytes += self._memory_of(file) - memory_before
        self._arrow_bytes += row_bytes * rows.num_rows
        if self._file_bytes == 0:
            reach("write.file_open", self._names.batch_id)
        self._file_bytes += file.parquet.size_bytes - before

    def _file(self, values: Values, encodings: Encodings) -> _OpenFile:
        """The partition's open file, or a new one."""
        if values not in self._open:
            self._make_room(files=1)
            path = self._new_path(values)
            sink = self._filesystem.open_output_stream(posixpath.join(self._root, path))
            parquet = OpenParquetFile(sink, self._schema, self._plan, encodings)
            file = self._open[values] = _OpenFile(path, parquet, self._new_statistics())
            self._memory_bytes += self._memory_of(file)
        return self._open[values]

    def _make_room(self, files: int = 0) -> None:
        """For so many more files."""
        while self._open and (
            len(self._open) + files > self._open_max or self._memory_bytes > self._memory_bytes_max
        ):
            newest_first = reversed(self._open)
            self.close(max(newest_first, key=lambda values: self._memory_of(self._open[values])))

    def _memory_of(self, file: _OpenFile) -> int:
        uploads = 0 if self._is_local else min(file.parquet.size_bytes, UPLOAD_BYTES)
        return file.parquet.memory_bytes + uploads

    def _new_path(self, values: Values) -> str:
        name = self._names.name(len(self.paths), self._plan.compression)
        path = self._plan.table_format.data_path(values, str(name))
        full_path = posixpath.join(self._root, path)
        parent = posixpath.dirname(full_path)
        if self._is_local and parent not in self._directories:
            self._filesystem.create_dir(parent)
            self._directories.add(parent)
        if self._filesystem.get_file_info(full_path).type != FileType.NotFound:
            raise RetryableError(
                f"The file {path} exists already ({self._names}); another task attempt has written under"
                " the same ids. Nothing was overwritten. Start the query again: its run id makes new names."
            )
        self.paths.append(path)
        return path


def _files_per_process() -> int:
    """How many the system allows. Spark's JVM has raised it to the most for its Python workers."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
