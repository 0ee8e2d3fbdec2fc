"""Writes the next slices of file groups of a Hudi table: the rows that stay, in a file of the same group.

Runs in the commit of a batch, on the driver or in the delivery process. Rows keep Hudi's own columns, but for
the name of their file. A group without rows gets a file without rows: its older slices stay hidden.
"""

from __future__ import annotations

import posixpath
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from ...committers.arrow_values import string_array
from ...committers.contract import DataFile, Manifest
from ...committers.file_tables.manifest import LakeManifest
from ...committers.hudi.changes import MaskedSlice
from ...committers.hudi.commit_metadata import RewrittenSlice
from ...committers.hudi.names import FILE_NAME, next_slice, slice_path
from ...writers.changes.rewriting import aborted, config_for, read_rows, write_errors
from ...writers.hudi.table_format import HudiFormat
from ...writers.parquet.compaction import without_rows
from ...writers.parquet.data_files import DataFileWriter
from ...writers.parquet.file_names import FileNames
from ...writers.parquet.table_format import PartitionValues
from ...writers.parquet.uploads import open_new_files
from ...writers.parquet.write_config import WriteConfig


@dataclass(frozen=True, slots=True)
class SliceFormat(HudiFormat):
    """One file of rows that were in another one. See `TableFormat`."""

    path: str = ""

    def data_path(self, values: PartitionValues, file_name: str) -> str:
        return self.path

    def stored_rows(self, rows: pa.Table, path: str, first: int) -> pa.Table:
        """Put the name of the file into its column."""
        name = string_array([posixpath.basename(path)])[0]
        number = rows.schema.get_field_index(FILE_NAME)
        return rows.set_column(number, rows.schema.field(number), pa.repeat(name, rows.num_rows))


@dataclass(frozen=True, slots=True)
class SliceRewriter:
    """See `RewriteSlices`."""

    config_of: Callable[[LakeManifest], WriteConfig | None]
    """Returns how to write files of the table; None if it no longer accepts them."""

    def __call__(
        self, manifest: Manifest, content: LakeManifest, slices: Sequence[MaskedSlice]
    ) -> Sequence[RewrittenSlice]:
        config = config_for(self.config_of, manifest, content)
        location = config.table_format.open_filesystem(config.location, config.storage_options)
        batch = manifest.batch
        names = FileNames(batch.stream.query_id, uuid.uuid4().hex, batch.batch_id, 0, 0)
        name = names.name(0, config.compression)
        done: list[_Rewriting] = []
        with write_errors(manifest), aborted(done):
            for number, one in enumerate(slices):
                instant, attempt = str(content.table_version), int(name.run, 16)
                path = slice_path(str(name), next_slice(one.slice.path, instant, attempt, number))
                done.append(_Rewriting(config, location, names, path))
                done[-1].write(one)
        return [
            RewrittenSlice(rewriting.file, one.slice.instant, len(one.masked))
            for rewriting, one in zip(done, slices, strict=True)
        ]


class _Rewriting:
    """One new file."""

    def __init__(
        self, config: WriteConfig, location: tuple[FileSystem, str], names: FileNames, path: str
    ) -> None:
        own = config.table_format
        assert isinstance(own, HudiFormat)
        values = {field.name: getattr(own, field.name) for field in fields(own)}
        self._config = replace(
            config,
            table_format=SliceFormat(**{**values, "path": path}),
            target_file_bytes=sys.maxsize,
            sort=(),
        )
        self._location = location
        self._path = path
        self._writer = DataFileWriter(self._config, names, location, partition=())
        self._empty = open_new_files(*location)
        self.file = DataFile(path, 0, 0)

    def write(self, masked: MaskedSlice) -> None:
        for rows in self._rows_left(masked):
            self._writer.write(rows)
        written = self._writer.finish()
        self.file = written[0] if written else self._without_rows()

    def _rows_left(self, masked: MaskedSlice) -> Iterator[pa.RecordBatch]:
        left = partial(without_rows, deleted=masked.masked)
        yield from read_rows(self._config, self._location, masked.slice.path, left)

    def _without_rows(self) -> DataFile:
        with self._empty.open(self._path) as sink:
            pq.write_table(self._config.file_schema.empty_table(), sink)
            size = sink.tell()
        self._empty.finish()
        return DataFile(self._path, size, 0)

    def abort(self) -> None:
        self._writer.abort()
        self._empty.delete_all()
