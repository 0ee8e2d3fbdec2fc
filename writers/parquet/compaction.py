"""Many small data files of one table partition become a few of the target size, before a table names them.

Runs wherever the sources can be read: in the delivery process, in workers of its own, on Spark's executors.
The rows stay as they are, bit for bit, and the new files are made by the same writer as those of a query:
with the same statistics, order within row groups, and names that clean-up knows.
"""

from __future__ import annotations

import contextlib
import math
import posixpath
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ...committers.contract import DataFile
from ...committers.deletion import DeletionGuard
from ...committers.errors import PenstockError, RetryableError
from .columns import parquet_width
from .data_files import DataFileWriter
from .objects import objects_of
from .table_format import PartitionValues
from .write_config import FileNames, WriteConfig

_KIBIBYTE = 1024
_MEBIBYTE = 1024 * _KIBIBYTE

SMALL = 0.75
"""Files with at least this share of the target size stay as they are."""

GROUP_TARGETS = 4
"""How many target sizes a group has at most: one file of it may stay below the target."""

GROUP_FILES = 2000
"""And how many files: opening one takes a millisecond, more in an object store, and groups are rewritten at
the same time."""

BATCH_BYTES = 8 * _MEBIBYTE
"""Of rows read at a time, about, as Arrow bytes."""

_BATCH_ROWS_MAX = 64 * _KIBIBYTE
_PROBED_ROWS = 1024

_WHOLE_BYTES = _MEBIBYTE
"""Files up to this size are read with one request."""
_FETCH_THREADS = 16
_FETCHED_AHEAD = 32
"""Small files that wait in memory at most."""

_READ_BYTES = 32 * _MEBIBYTE
"""For the pieces of all columns of a larger file."""
_COLUMN_BYTES_MIN = 64 * _KIBIBYTE
_COLUMN_BYTES_MAX = _MEBIBYTE


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Small files of one table partition whose rows go into as few files as they fill. Pickles."""

    number: int
    """Counts the groups of one compaction: it stands in the names of the new files."""
    partition: PartitionValues
    sources: tuple[DataFile, ...]
    """Their statistics left out: nobody needs them."""

    @property
    def size_bytes(self) -> int:
        return sum(source.size_bytes for source in self.sources)

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources)


# Which files --------------------------------------------------------------------------------------


def choose_groups(files: Sequence[DataFile], target_file_bytes: int) -> list[RewriteGroup]:
    """What is worth rewriting, always the same for the same files; empty if nothing is.

    Small files of a table partition go together in the order given, up to `GROUP_TARGETS` target sizes or
    `GROUP_FILES` files. A group is left alone if it would not become fewer files.
    """
    by_partition: dict[PartitionValues, list[DataFile]] = {}
    for file in files:
        if file.size_bytes < target_file_bytes * SMALL:
            by_partition.setdefault(file.partition_values, []).append(file)
    worthwhile = [
        (partition, sources)
        for partition, small in by_partition.items()
        for sources in _pack(small, target_file_bytes)
        if math.ceil(sum(file.size_bytes for file in sources) / target_file_bytes) < len(sources)
    ]
    return [
        RewriteGroup(number, partition, tuple([replace(file, statistics="") for file in sources]))
        for number, (partition, sources) in enumerate(worthwhile)
    ]


def _pack(files: Sequence[DataFile], target_file_bytes: int) -> list[tuple[DataFile, ...]]:
    """Evenly, so that no group is a mere rest: by each file's share of what a group may hold."""
    shares = [file.size_bytes / (GROUP_TARGETS * target_file_bytes) + 1 / GROUP_FILES for file in files]
    total = sum(shares)
    count = math.ceil(total)
    groups: list[list[DataFile]] = [[] for _ in range(count)]
    for file, before in zip(files, accumulate(shares, initial=0.0), strict=False):
        groups[min(int(before / total * count), count - 1)].append(file)
    return [tuple(group) for group in groups]


# The rewriting ------------------------------------------------------------------------------------


def rewrite_group(plan: WriteConfig, names: FileNames, group: RewriteGroup) -> tuple[DataFile, ...]:
    """The rows of the group's sources in new, durable files. No table names them yet; the sources stay.

    Memory: what `DataFileWriter` takes, and up to 160 MiB to read. On any error the new files are deleted.

    Raises:
        RetryableError: a source is gone, or the storage cannot be read or written now.
        PenstockError: a source is not the file that it was when it was written.
    """
    filesystem, root = plan.table_format.open_filesystem(plan.location, plan.storage_options)
    writer = DataFileWriter(plan, names, (filesystem, root), group.partition)
    try:
        for batch in _Sources(filesystem, root, group.sources, plan.file_schema).batches():
            writer.write(batch)
        files = writer.finish()
        _check_rows(group, files)
    except BaseException as error:
        writer.abort()
        if isinstance(error, OSError):
            raise RetryableError(
                f"{len(group.sources)} small data files could not be compacted ({names}): {error}. Nothing "
                "was committed, and the new files were deleted. Check that the storage can be written; it "
                "is tried again."
            ) from error
        raise
    return files


def _check_rows(group: RewriteGroup, files: Sequence[DataFile]) -> None:
    rows = sum(file.rows for file in files)
    if rows != group.rows:
        raise PenstockError(
            f"Compacting {len(group.sources)} data files made {rows} rows of {group.rows}. Nothing was "
            "committed. This is a bug in Penstock: please report it."
        )


def delete_files(plan: WriteConfig, files: Iterable[DataFile]) -> None:
    """Take back what a compaction made. Never raises: what stays is an orphan, which clean-up finds."""
    with contextlib.suppress(Exception):
        filesystem, root = plan.table_format.open_filesystem(plan.location, plan.storage_options)
        for path in DeletionGuard([plan.location]).allowed_below(
            plan.location, [file.path for file in files]
        ):
            with contextlib.suppress(Exception):
                filesystem.delete_file(posixpath.join(root, path))


class _Sources:
    """Reads data files one after the other, in record batches of bounded size.

    Small files are fetched whole and some ahead: an object store lets each wait for its answer.
    """

    def __init__(
        self, filesystem: FileSystem, root: str, files: Sequence[DataFile], schema: pa.Schema
    ) -> None:
        self._filesystem = filesystem
        self._root = root
        self._files = files
        columns = sum(parquet_width(column.type) for column in schema)
        self._buffer_bytes = max(min(_COLUMN_BYTES_MAX, _READ_BYTES // columns), _COLUMN_BYTES_MIN)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            RetryableError: a file is gone or cannot be read now.
            PenstockError: a file is another one than was written.
        """
        for file, opening in self._opened():
            try:
                with opening.result() as content, self._parquet(content) as parquet:
                    _check_footer(file, parquet.metadata)
                    yield from parquet.iter_batches(
                        _batch_rows(parquet), use_threads=parquet.metadata.num_rows > _PROBED_ROWS
                    )
            except FileNotFoundError as error:
                raise RetryableError(
                    f"The data file {file.path} is gone, before it was committed. Nothing was committed. If "
                    "its batch can be written again, start the query: it sees that the file is missing. "
                    "Vacuum the table with a retention that is longer than a delivery waits."
                ) from error
            except OSError as error:
                raise RetryableError(
                    f"The data file {file.path} cannot be read: {error}. Nothing was committed. Check that "
                    "the storage is reachable; it is tried again."
                ) from error
            except pa.ArrowException as error:
                raise _damaged(file, str(error)) from error

    def _opened(self) -> Iterator[tuple[DataFile, Future[pa.NativeFile]]]:
        ahead: deque[tuple[DataFile, Future[pa.NativeFile]]] = deque()
        threads = ThreadPoolExecutor(_FETCH_THREADS)
        try:
            for file in self._files:
                ahead.append((file, threads.submit(self._open, file)))
                if len(ahead) > _FETCHED_AHEAD:
                    yield ahead.popleft()
            yield from ahead
        finally:
            threads.shutdown(cancel_futures=True)

    def _open(self, file: DataFile) -> pa.NativeFile:
        if file.size_bytes > _WHOLE_BYTES:
            return self._filesystem.open_input_file(posixpath.join(self._root, file.path))
        return pa.BufferReader(objects_of(self._filesystem, self._root).read(file.path))

    def _parquet(self, content: pa.NativeFile) -> pq.ParquetFile:
        """With a buffer a column is read piece by piece; without one, the whole column of a row group."""
        return pq.ParquetFile(content, buffer_size=self._buffer_bytes)


def _batch_rows(parquet: pq.ParquetFile) -> int:
    """Rows that take `BATCH_BYTES` about, by the footer and, since values may repeat, by some of them."""
    footer = parquet.metadata
    row_groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    row_bytes = max(group.total_byte_size / max(group.num_rows, 1) for group in row_groups)
    if footer.num_rows > _PROBED_ROWS:
        probe = next(parquet.iter_batches(_PROBED_ROWS))
        row_bytes = max(row_bytes, probe.nbytes / probe.num_rows)
    return max(min(int(BATCH_BYTES / row_bytes), _BATCH_ROWS_MAX), 1)


def _check_footer(file: DataFile, footer: pq.FileMetaData) -> None:
    if footer.num_rows != file.rows:
        raise _damaged(file, f"it has {footer.num_rows} rows of {file.rows}")


def _damaged(file: DataFile, how: str) -> PenstockError:
    return PenstockError(
        f"The data file {file.path} is not the one that was written: {how}. Nothing was committed. Put the "
        "file back from a copy of the storage, or give its batch up: `penstock skip`."
    )
