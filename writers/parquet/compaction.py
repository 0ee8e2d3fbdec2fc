"""Rewrites many small data files of one table partition into a few of the target size, before they are
committed.

Runs wherever the source files can be read: in the delivery process, in worker processes, on Spark's
executors. Rows are not changed. The new files are written by the same writer as those of a query, so they
have the same statistics, the same order within row groups, and names that clean-up knows.
"""

from __future__ import annotations

import contextlib
import math
import posixpath
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ...committers.arrow_values import numeric_scalar
from ...committers.changes.keys import row_numbers
from ...committers.cleaning.deletion import DeletionGuard
from ...committers.cleaning.regular_files import open_input
from ...committers.contract import DataFile
from ...committers.errors import PenstockError, RetryableError
from .columns import parquet_width, without_views
from .data_files import DataFileWriter
from .file_names import FileNames
from .objects import objects_of
from .table_format import PartitionValues
from .write_config import WriteConfig

_KIBIBYTE = 1024
_MEBIBYTE = 1024 * _KIBIBYTE

SMALL = 0.75
"""Files with at least this share of the target size are not rewritten."""

GROUP_TARGETS = 4
"""Maximum size of a group in target sizes. At most one new file of a group is smaller than the target."""

GROUP_FILES = 2000
"""Maximum number of files in a group: opening one takes a millisecond, more in an object store, and groups
are rewritten in parallel.
"""

BATCH_BYTES = 8 * _MEBIBYTE
"""Approximate size of rows read at a time, as Arrow bytes."""

_BATCH_ROWS_MAX = 64 * _KIBIBYTE
_PROBED_ROWS = 1024

_WHOLE_BYTES = _MEBIBYTE
"""Files up to this size are read with one request."""
_FETCH_THREADS = 16
_FETCHED_AHEAD = 32
"""Maximum number of small files prefetched into memory."""

_READ_BYTES = 32 * _MEBIBYTE
"""Buffer for all columns of a larger file."""
_COLUMN_BYTES_MIN = 64 * _KIBIBYTE
_COLUMN_BYTES_MAX = _MEBIBYTE


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Small files of one table partition that are rewritten together into as few files as possible. Can be
    pickled.
    """

    number: int
    """Number of the group within one compaction; part of the names of the new files."""
    partition: PartitionValues
    sources: tuple[DataFile, ...]
    """Without statistics, which are not needed."""
    deleted: Mapping[str, pa.Array] = field(default_factory=dict)
    """Numbers of the rows (int64) that are left out, by path of their file."""

    @property
    def size_bytes(self) -> int:
        return sum(source.size_bytes for source in self.sources)

    @property
    def rows(self) -> int:
        """Without those that are left out."""
        return sum(source.rows for source in self.sources) - sum(map(len, self.deleted.values()))


# Choosing files -------------------------------------------------------------------------------------


def choose_groups(
    files: Sequence[DataFile], target_file_bytes: int, required: Collection[str] = ()
) -> list[RewriteGroup]:
    """The groups worth rewriting, the same for the same files; empty if there are none.

    Small files of a table partition are grouped in the given order, up to `GROUP_TARGETS` target sizes or
    `GROUP_FILES` files. A group that would not get fewer files is skipped.

    Args:
        required: paths of files that are rewritten in any case
    """
    by_partition: dict[PartitionValues, list[DataFile]] = {}
    for file in files:
        if file.size_bytes < target_file_bytes * SMALL or file.path in required:
            by_partition.setdefault(file.partition_values, []).append(file)
    worthwhile = [
        (partition, sources)
        for partition, small in by_partition.items()
        for sources in _pack(small, target_file_bytes)
        if math.ceil(sum(file.size_bytes for file in sources) / target_file_bytes) < len(sources)
        or any(file.path in required for file in sources)
    ]
    return [
        RewriteGroup(number, partition, tuple([replace(file, statistics="") for file in sources]))
        for number, (partition, sources) in enumerate(worthwhile)
    ]


def _pack(files: Sequence[DataFile], target_file_bytes: int) -> list[tuple[DataFile, ...]]:
    """Distribute files evenly over groups, by each file's share of a group's limits."""
    shares = [file.size_bytes / (GROUP_TARGETS * target_file_bytes) + 1 / GROUP_FILES for file in files]
    total = sum(shares)
    count = math.ceil(total)
    groups: list[list[DataFile]] = [[] for _ in range(count)]
    for file, before in zip(files, accumulate(shares, initial=0.0), strict=False):
        groups[min(int(before / total * count), count - 1)].append(file)
    return [tuple(group) for group in groups]


# Rewriting ------------------------------------------------------------------------------------------


def rewrite_group(config: WriteConfig, names: FileNames, group: RewriteGroup) -> tuple[DataFile, ...]:
    """Write the rows of the group's source files into new, durable files, which are not committed yet. The
    sources are kept.

    Memory: as for `DataFileWriter`, plus up to 160 MiB for reading. After an error the new files are deleted.

    Raises:
        RetryableError: a source file is missing, or the storage cannot be read or written now.
        PenstockError: a source file has changed since it was written.
    """
    filesystem, root = config.table_format.open_filesystem(config.location, config.storage_options)
    writer = DataFileWriter(config, names, (filesystem, root), group.partition)
    try:
        for batch in _Sources(filesystem, root, group, config.file_schema).batches():
            writer.write(batch)
        files = writer.finish()
        _check_rows(group, files)
    except BaseException as error:
        writer.abort()
        if isinstance(error, OSError):
            raise RetryableError(
                f"{len(group.sources)} small data files could not be compacted ({names}): {error}. Nothing "
                "was committed, and the new files were deleted. Check that the storage is writable. The "
                "next delivery tries again."
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


def delete_files(config: WriteConfig, files: Iterable[DataFile]) -> None:
    """Delete the new files of a compaction. Never raises: files that cannot be deleted are found by
    clean-up.
    """
    with contextlib.suppress(Exception):
        filesystem, root = config.table_format.open_filesystem(config.location, config.storage_options)
        for path in DeletionGuard([config.location]).allowed_below(
            config.location, [file.path for file in files]
        ):
            with contextlib.suppress(Exception):
                filesystem.delete_file(posixpath.join(root, path))


class _Sources:
    """Reads data files one after the other, in record batches of limited size.

    Small files are fetched whole, and some are prefetched, because each request to an object store takes
    time.
    """

    def __init__(self, filesystem: FileSystem, root: str, group: RewriteGroup, schema: pa.Schema) -> None:
        self._filesystem = filesystem
        self._root = root
        self._files = group.sources
        self._deleted = group.deleted
        columns = sum(parquet_width(column.type) for column in schema)
        self._buffer_bytes = max(min(_COLUMN_BYTES_MAX, _READ_BYTES // columns), _COLUMN_BYTES_MIN)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            RetryableError: a file is missing or cannot be read now.
            PenstockError: a file is not the one that was written.
        """
        for file, opening in self._opened():
            try:
                with opening.result() as content, self._parquet(content) as parquet:
                    _check_footer(file, parquet.metadata)
                    rows = parquet.iter_batches(
                        _batch_rows(parquet), use_threads=parquet.metadata.num_rows > _PROBED_ROWS
                    )
                    deleted = self._deleted.get(file.path)
                    yield from rows if deleted is None else without_rows(rows, deleted)
            except FileNotFoundError as error:
                raise RetryableError(
                    f"The data file {file.path} is missing and was not committed yet. Nothing was "
                    "committed. If its batch can be written again, start the query, which detects the "
                    "missing file. Use a vacuum retention that is longer than deliveries wait."
                ) from error
            except OSError as error:
                raise RetryableError(
                    f"The data file {file.path} cannot be read: {error}. Nothing was committed. Check that "
                    "the storage is reachable. The next delivery tries again."
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
            return open_input(self._filesystem, posixpath.join(self._root, file.path))
        return pa.BufferReader(objects_of(self._filesystem, self._root).read(file.path))

    def _parquet(self, content: pa.NativeFile) -> pq.ParquetFile:
        """With a buffer a column is read in pieces; without one, the whole column of a row group is read."""
        return pq.ParquetFile(content, buffer_size=self._buffer_bytes)


def without_rows(batches: Iterable[pa.RecordBatch], deleted: pa.Array) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file except those with these numbers (int64)."""
    first = 0
    for batch in batches:
        numbers = pc.add(row_numbers(batch.num_rows), numeric_scalar(first))
        first += batch.num_rows
        yield without_views(batch).filter(pc.invert(pc.is_in(numbers, value_set=deleted)))


def _batch_rows(parquet: pq.ParquetFile) -> int:
    """Number of rows with about `BATCH_BYTES`, from the footer and, since values may repeat, from a
    sample.
    """
    footer = parquet.metadata
    row_groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    row_bytes = max(group.total_byte_size / max(group.num_rows, 1) for group in row_groups)
    if footer.num_rows > _PROBED_ROWS:
        probe = next(parquet.iter_batches(_PROBED_ROWS))
        row_bytes = max(row_bytes, probe.nbytes / probe.num_rows)
    return max(min(int(BATCH_BYTES / row_bytes), _BATCH_ROWS_MAX), 1)


def _check_footer(file: DataFile, footer: pq.FileMetaData) -> None:
    if footer.num_rows != file.rows:
        raise _damaged(file, f"it has {footer.num_rows} rows instead of {file.rows}")


def _damaged(file: DataFile, how: str) -> PenstockError:
    return PenstockError(
        f"The data file {file.path} is not the one that was written: {how}. Nothing was committed. Restore "
        "the file from a backup of the storage, or abort its batch: `penstock skip`."
    )
