"""Writes the rows of data files into new files, without some of them: copy-on-write.

Runs in the commit of a batch, on the driver or in the delivery process. The new files carry the names of the
batch, so clean-up knows them.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ...committers.changes.rewriting import MaskedFile
from ...committers.cleaning.deletion import is_relative
from ...committers.cleaning.regular_files import open_input
from ...committers.contract import DataFile, Manifest
from ...committers.errors import (
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
        config = self.config_of(content)
        if config is None:
            raise SchemaMismatchError(
                f"The table of {manifest.batch.stream} was altered: its files cannot be written again for "
                f"batch {manifest.batch.batch_id}. The batch was not committed. Start the query again."
            )
        location = config.table_format.open_filesystem(config.location, config.storage_options)
        batch, run_id = manifest.batch, uuid.uuid4().hex
        writers: list[DataFileWriter] = []
        new: list[DataFile] = []
        by_partition = sorted(files, key=lambda one: str(one.file.partition_values))
        try:
            for number, (partition, group) in enumerate(
                groupby(by_partition, key=lambda one: one.file.partition_values)
            ):
                names = FileNames(batch.stream.query_id, run_id, batch.batch_id, number, 0)
                is_current = tuple([name for name, _ in partition]) == content.partition_by
                writers.append(DataFileWriter(config, names, location, partition if is_current else None))
                for one in group:
                    for rows in _rows_left(config, location, one):
                        writers[-1].write(rows)
                new += writers[-1].finish()
        except BaseException:
            for writer in writers:
                writer.abort()
            raise
        return new


def _rows_left(
    config: WriteConfig, location: tuple[FileSystem, str], masked: MaskedFile
) -> Iterator[pa.RecordBatch]:
    """
    Raises:
        RetryableError: the file cannot be read now.
        TableNotSupportedError: not all its values are in the file.
        PenstockError: it is damaged.
    """
    path = masked.file.path
    by_id = has_field_ids(config.row_schema)
    try:
        with open_data_file(config, location, path) as stream:
            batches = pq.ParquetFile(stream).iter_batches(_ROWS_PER_READ)
            for left in without_rows(batches, masked.masked):
                rows = renamed_by_id(left, config.row_schema, path) if by_id else _known(left, config)
                _check_stored(rows, masked)
                yield rows
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
        raise TableNotSupportedError(
            f"The data file {masked.file.path} does not have the columns {', '.join(missing)}, whose values "
            "are only in the metadata of the table, as in files from Hive. Nothing was committed. Use "
            "merge=on-read, or rewrite the file with another engine."
        )


def _known(rows: pa.RecordBatch, config: WriteConfig) -> pa.RecordBatch:
    """Return the columns that files of the table have: files of two tables have those of both."""
    return rows.select([name for name in rows.schema.names if name in config.file_schema.names])


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
