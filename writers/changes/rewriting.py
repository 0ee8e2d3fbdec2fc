"""Writes the rows of data files into new files, without some of them: copy-on-write.

Runs in the commit of a batch, on the driver or in the delivery process. The new files carry the names of the
batch, so clean-up knows them.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ...committers.changes.rewriting import MaskedFile
from ...committers.cleaning.deletion import is_relative
from ...committers.cleaning.regular_files import open_input
from ...committers.contract import DataFile, Manifest
from ...committers.error_causes import retryable
from ...committers.errors import (
    NEXT_TRY,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableNotSupportedError,
)
from ...committers.file_tables.manifest import LakeManifest
from ..parquet.compaction import without_rows
from ..parquet.data_files import DataFileWriter
from ..parquet.field_ids import has_field_ids, renamed_by_id
from ..parquet.file_names import FileNames
from ..parquet.write_config import WriteConfig

_ROWS_PER_READ = 64 * 1024


@dataclass(frozen=True, slots=True)
class FileRewriter:
    """See `RewriteFiles`."""

    config_of: Callable[[LakeManifest], WriteConfig | None]
    """Returns how to write files of the table; None if it no longer accepts them."""

    def __call__(
        self, manifest: Manifest, content: LakeManifest, files: Sequence[MaskedFile]
    ) -> Sequence[DataFile]:
        """Rewrite the files, those of a table partition together. After an error the new ones are deleted."""
        config = config_for(self.config_of, manifest, content)
        location = config.table_format.open_filesystem(config.location, config.storage_options)

        def rows_left(masked: MaskedFile) -> Iterator[pa.RecordBatch]:
            left = partial(without_rows, deleted=masked.masked)
            for rows in read_rows(config, location, masked.file.path, left):
                _check_stored(rows, masked)
                yield rows

        return written(config, manifest, content, files, rows_left)


def config_for(
    config_of: Callable[[LakeManifest], WriteConfig | None], manifest: Manifest, content: LakeManifest
) -> WriteConfig:
    """
    Raises:
        SchemaMismatchError: the table no longer accepts the files.
    """
    config = config_of(content)
    if config is None:
        raise SchemaMismatchError(
            f"The table of {manifest.batch.stream} was altered: its files cannot be written again for "
            f"batch {manifest.batch.batch_id}. The batch was not committed. Start the query again."
        )
    return config


class _OfFile(Protocol):
    @property
    def file(self) -> DataFile: ...


_OfFileT = TypeVar("_OfFileT", bound=_OfFile)


def written(
    config: WriteConfig,
    manifest: Manifest,
    content: LakeManifest,
    parts: Sequence[_OfFileT],
    rows_of: Callable[[_OfFileT], Iterator[pa.RecordBatch]],
) -> list[DataFile]:
    """Write rows of files into new files, those of a table partition together. After an error the new ones
    are deleted.

    Args:
        rows_of: returns rows of a part, as `read_rows`
    """
    location = config.table_format.open_filesystem(config.location, config.storage_options)
    batch, run_id = manifest.batch, uuid.uuid4().hex
    writers: list[DataFileWriter] = []
    new: list[DataFile] = []
    by_partition = sorted(parts, key=lambda one: str(one.file.partition_values))
    with write_errors(manifest), aborted(writers):
        for number, (partition, group) in enumerate(
            groupby(by_partition, key=lambda one: one.file.partition_values)
        ):
            names = FileNames(batch.stream.query_id, run_id, batch.batch_id, number, 0)
            is_current = tuple([name for name, _ in partition]) == content.partition_by
            writers.append(DataFileWriter(config, names, location, partition if is_current else None))
            for one in group:
                for rows in rows_of(one):
                    writers[-1].write(rows)
            new += writers[-1].finish()
    return new


class _Abortable(Protocol):
    def abort(self) -> None: ...


@contextmanager
def aborted(writers: Sequence[_Abortable]) -> Iterator[None]:
    """Abort the writers after an error."""
    try:
        yield
    except BaseException:
        for writer in writers:
            writer.abort()
        raise


@contextmanager
def write_errors(manifest: Manifest) -> Iterator[None]:
    """
    Raises:
        RetryableError: the storage cannot be reached now.
    """
    try:
        yield
    except OSError as error:
        raise retryable(error)(
            f"Files of batch {manifest.batch.batch_id} of {manifest.batch.stream} cannot be written: "
            f"{error}. Nothing was committed. Check that the storage is reachable. {NEXT_TRY}"
        ) from error


def read_rows(
    config: WriteConfig,
    location: tuple[FileSystem, str],
    path: str,
    select: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a file.

    Args:
        select: takes all its rows, in the columns of the table

    Raises:
        RetryableError: the file cannot be read now.
        PenstockError: it is damaged.
    """
    with read_errors(path), open_data_file(config, location, path) as stream:
        batches = pq.ParquetFile(stream).iter_batches(_ROWS_PER_READ)
        yield from select(in_columns(rows, config.row_schema, config.file_schema, path) for rows in batches)


@contextmanager
def read_errors(path: str) -> Iterator[None]:
    """
    Raises:
        RetryableError: the data file cannot be read now.
        PenstockError: it is damaged.
    """
    try:
        yield
    except OSError as error:
        raise RetryableError(
            f"The data file {path} cannot be read: {error}. Nothing was committed. Check that the storage is "
            "reachable. The query's next start, or its next delivery, tries again."
        ) from error
    except pa.ArrowException as error:
        raise PenstockError(
            f"The data file {path} cannot be read: {error}. Nothing was committed. Restore it from a backup."
        ) from error


def _check_stored(rows: pa.RecordBatch, masked: MaskedFile) -> None:
    if missing := [name for name in masked.stored if name not in rows.schema.names]:
        raise only_in_metadata(masked.file.path, missing)


def only_in_metadata(path: str, missing: Sequence[str]) -> TableNotSupportedError:
    """Return the error for a file whose rows cannot be written again without the table's metadata."""
    return TableNotSupportedError(
        f"The data file {path} does not have the columns {', '.join(missing)}, whose values are only in the "
        "metadata of the table, as in files from Hive. Nothing was committed. Use merge=on-read, or rewrite "
        "the file with another engine."
    )


def in_columns(rows: pa.RecordBatch, wanted: pa.Schema, columns: pa.Schema, path: str) -> pa.RecordBatch:
    """Return the columns of a file that the table has, with their names in the table: files of two tables
    have the columns of both.

    Args:
        wanted: the columns of the table, with field ids if names may change
        columns: those that are returned if there are no field ids

    Raises:
        TableNotSupportedError: it is not known which column is which.
    """
    if has_field_ids(wanted):
        return renamed_by_id(rows, wanted, path)
    return rows.select([name for name in rows.schema.names if name in columns.names])


def open_data_file(config: WriteConfig, location: tuple[FileSystem, str], path: str) -> pa.NativeFile:
    """Open a file below the location of the data files, or one of another writer anywhere.

    Args:
        location: of the data files, opened
    """
    if is_relative(path):
        filesystem, root = location
        return open_input(filesystem, posixpath.join(root, path))
    folder, name = posixpath.split(path)
    filesystem, root = config.table_format.open_filesystem(folder, config.storage_options)
    return open_input(filesystem, posixpath.join(root, name))
