"""Open data files of a task attempt: one per table partition, closed at the target size."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass

import pyarrow as pa
from pyarrow.fs import FileSystem, LocalFileSystem

from ...committers.contract import DataFile
from ...committers.crash_points import reach
from .buffers import RowGroup
from .data_file_config import DataFileConfig
from .file import Encodings, OpenParquetFile
from .file_names import FileNames
from .table_format import FileStatistics, OpenDataFile, OpensFiles, PartitionValues, StoresFileNames
from .uploads import open_new_files

FULL = 0.9
"""A file this close to the target size is closed: only a tiny row group would still fit."""

MEMORY_BYTES_MIN, UPLOAD_BYTES_MIN = 16 * 1024 * 1024, 48 * 1024 * 1024
"""Minimum memory for open files, however small the buffers are; on object stores for one file that is
uploaded in parts.
"""


@dataclass(slots=True)
class _OpenFile:
    path: str
    data: OpenDataFile
    statistics: FileStatistics
    rows: int = 0


class OpenFiles:
    """Writes row groups to files. Not safe for use by two threads at once.

    One file per table partition, within a memory limit: an open file keeps its footer, with an entry for each
    column of each row group, and on an object store the data that waits for its upload. If the memory or the
    number of files is exceeded, the largest ones are closed. Closing the least recently used would be worse:
    rows of all partitions arrive in turn, so each file would be closed just before its next row group.
    """

    def __init__(self, config: DataFileConfig, names: FileNames, filesystem: FileSystem, root: str) -> None:
        self._config = config
        self._names = names
        self._schema = config.file_schema
        self._new_statistics = config.table_format.file_statistics(config.row_schema)
        table_format = config.table_format
        self._stored_rows = table_format.stored_rows if isinstance(table_format, StoresFileNames) else None
        self._open_file = table_format.open_file if isinstance(table_format, OpensFiles) else None
        self._new_files = open_new_files(filesystem, root)
        if isinstance(filesystem, LocalFileSystem):
            self._memory_bytes_max = max(config.buffer_bytes_max * 3 // 8, MEMORY_BYTES_MIN)
        else:
            self._memory_bytes_max = max(config.buffer_bytes_max * 2, UPLOAD_BYTES_MIN)
        self._open: dict[PartitionValues, _OpenFile] = {}
        self._open_max = min(config.max_open_partitions, _files_per_process() // 2)
        self._memory_bytes = 0
        self._arrow_bytes = 0.0
        self._file_bytes = 0
        self._closed: list[DataFile] = []

    def __contains__(self, values: PartitionValues) -> bool:
        """Return True if the table partition has an open file."""
        return values in self._open

    def write(self, group: RowGroup, encodings: Encodings) -> None:
        """Append rows to the partition's file, in as many row groups and files as the limits require.

        `encodings` are used for files that are opened now.
        """
        rows = group.rows
        row_bytes = group.size_bytes / rows.num_rows
        start = 0
        while start < rows.num_rows:
            file = self._file(group.values, encodings)
            count = self._rows_that_fit(row_bytes, file.data.size_bytes)
            self._write_row_group(file, rows.slice(start, count), row_bytes)
            self._make_room()
            start += count
            if file.data.size_bytes >= self._config.target_file_bytes * FULL:
                self.close(group.values)

    def stored(self, rows: pa.Table, path: str, first: int) -> pa.Table:
        """Return the rows with all columns of the file. See `StoresFileNames`."""
        return rows if self._stored_rows is None else self._stored_rows(rows, path, first)

    def close(self, values: PartitionValues) -> None:
        """Close the file of one table partition, if one is open."""
        file = self._open.get(values)
        if file is None:
            return
        self._memory_bytes -= self._memory_of(file)
        footer = file.data.close()
        del self._open[values]
        self._closed.append(
            DataFile(file.path, file.data.size_bytes, file.rows, values, file.statistics.to_json(footer))
        )

    def finish(self) -> tuple[DataFile, ...]:
        """Close all files. The returned files survive a power failure."""
        for values in list(self._open):
            self.close(values)
        self._new_files.finish()
        return tuple(self._closed)

    def delete_all(self) -> None:
        """Delete all files so far, open or closed. Never raises: files that cannot be deleted are orphans."""
        self._new_files.delete_all()
        for file in self._open.values():
            file.data.discard()
        self._open.clear()

    def _rows_that_fit(self, row_bytes: float, used_bytes: int) -> int:
        """How many of these rows fill a row group or the file, estimated by the compression of earlier
        rows.
        """
        ratio = self._file_bytes / self._arrow_bytes if self._arrow_bytes else 1.0
        row_bytes = max(row_bytes * ratio, 0.001)
        room_bytes = self._config.target_file_bytes - used_bytes
        group_bytes = min(room_bytes, self._config.row_group_bytes or room_bytes)
        return min(max(int(group_bytes / row_bytes), 1), self._config.row_group_rows)

    def _write_row_group(self, file: _OpenFile, rows: pa.Table, row_bytes: float) -> None:
        before, memory_before = file.data.size_bytes, self._memory_of(file)
        rows = self.stored(rows, file.path, file.rows)
        file.statistics.add(rows)
        file.data.write_row_group(rows)
        file.rows += rows.num_rows
        self._memory_bytes += self._memory_of(file) - memory_before
        self._arrow_bytes += row_bytes * rows.num_rows
        if self._file_bytes == 0:
            reach("write.file_open", self._names.batch_id)
        self._file_bytes += file.data.size_bytes - before

    def _file(self, values: PartitionValues, encodings: Encodings) -> _OpenFile:
        """The partition's open file, or a new one."""
        if values not in self._open:
            self._make_room(files=1)
            name = self._names.name(len(self._closed) + len(self._open), self._config.compression)
            path = self._config.table_format.data_path(values, str(name))
            sink = self._new_files.open(path)
            data: OpenDataFile
            if self._open_file is None:
                data = OpenParquetFile(sink, self._schema, self._config, encodings)
            else:
                data = self._open_file(sink, self._schema)
            file = self._open[values] = _OpenFile(path, data, self._new_statistics())
            self._memory_bytes += self._memory_of(file)
        return self._open[values]

    def _make_room(self, files: int = 0) -> None:
        """Make room for this many more files."""
        while self._open and len(self._open) + files > self._open_max:
            self._close_largest()
        while self._memory_bytes + self._new_files.on_their_way_bytes > self._memory_bytes_max:
            if self._new_files.on_their_way_bytes:
                self._new_files.wait_for_one()
            elif self._open:
                self._close_largest()
            else:
                return

    def _close_largest(self) -> None:
        newest_first = reversed(self._open)
        self.close(max(newest_first, key=lambda values: self._memory_of(self._open[values])))

    def _memory_of(self, file: _OpenFile) -> int:
        return file.data.memory_bytes + self._new_files.waiting_bytes(file.data.size_bytes)


def _files_per_process() -> int:
    """Limit of the operating system. Spark's JVM has raised it to the maximum for its Python workers."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
