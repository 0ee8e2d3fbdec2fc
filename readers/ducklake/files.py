"""Reads the data files of a DuckLake, and the rows that its catalog has. Tasks need no duckdb for it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...committers.arrow_values import null_scalar, numeric_scalar, string_array
from ...committers.changes.keys import row_numbers
from ...committers.cleaning.regular_files import open_input
from ...committers.errors import TableNotSupportedError
from ...writers.delta.filesystem import open_filesystem
from ..predicates import Predicate
from ..rows import converted, matching, types_of
from ..scan import Scan, ScanFile

_SNAPSHOT = "_ducklake_internal_snapshot_id"
"""Column of files with rows of several snapshots: the snapshot in which a row was added or deleted."""


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Which rows of a data file are deleted in the snapshot."""

    files: tuple[str, ...] = ()
    """Delete files that apply."""
    numbers: pa.Array | None = None
    """Those in the catalog (int64)."""
    has_newer: bool = False
    """The file also has rows of later snapshots."""


@dataclass(frozen=True, slots=True)
class InlinedRows:
    """Rows that are in the catalog."""

    rows: pa.RecordBatch = field(repr=False)


@dataclass(frozen=True, slots=True)
class DuckLakeFiles:
    """See `DataFiles`."""

    table: str
    """For messages."""
    snapshot: int
    storage_options: Mapping[str, str] = field(repr=False)

    def open(self, path: str) -> AbstractContextManager[pa.NativeFile]:
        """
        Args:
            path: absolute, or a URL
        """
        root, name = posixpath.split(path) if "://" in path else ("/", path.lstrip("/"))
        filesystem, folder = open_filesystem(root, dict(self.storage_options))
        opened: AbstractContextManager[pa.NativeFile] = open_input(filesystem, posixpath.join(folder, name))
        return opened

    def deleted_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`."""
        if file.deletes is None:
            return None
        assert isinstance(file.deletes, DeletedRows)
        parts = [] if file.deletes.numbers is None else [file.deletes.numbers]
        parts += [self._in_delete_file(path) for path in file.deletes.files]
        if file.deletes.has_newer:
            parts.append(self._newer(file.path))
        found = pc.unique(pa.concat_arrays(parts))
        return found.take(pc.sort_indices(found))

    def _in_delete_file(self, path: str) -> pa.Array:
        with self.open(path) as stream:
            parquet = pq.ParquetFile(stream)
            rows = parquet.read([name for name in ("pos", _SNAPSHOT) if name in parquet.schema_arrow.names])
        if _SNAPSHOT in rows.column_names:
            rows = rows.filter(pc.less_equal(rows[_SNAPSHOT], numeric_scalar(self.snapshot)))
        return rows["pos"].combine_chunks().cast(pa.int64())

    def _newer(self, path: str) -> pa.Array:
        with self.open(path) as stream:
            snapshots = pq.ParquetFile(stream).read([_SNAPSHOT])[_SNAPSHOT].combine_chunks()
        return row_numbers(len(snapshots)).filter(pc.greater(snapshots, numeric_scalar(self.snapshot)))

    def only_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`."""
        return None

    def value(self, name: str, value: str | None, data_type: pa.DataType) -> pa.Scalar:
        """Return a default value, or one of the folder of a file.

        Raises:
            TableNotSupportedError: it cannot be converted.
        """
        if value is None:
            return null_scalar(data_type)
        text = string_array([value])[0]
        try:
            if pa.types.is_binary(data_type) and "\\" in value:
                raise pa.ArrowInvalid("it has escaped bytes")
            return text if data_type == pa.string() else text.cast(data_type)
        except pa.ArrowException as error:
            raise TableNotSupportedError(
                f"{self.table[0].upper()}{self.table[1:]} has the value {value!r} of the column {name!r}, "
                f"which cannot be read as {data_type}. Nothing more was read. Give the other columns in the "
                "option columns."
            ) from error


@dataclass(frozen=True)
class DuckLakeScan:
    """How the rows of one snapshot are read. See `TableScanner`."""

    parquet: Scan

    def with_where(self, where: Predicate | None) -> DuckLakeScan:
        return replace(self, parquet=self.parquet.with_where(where))

    def in_a_task(self) -> DuckLakeScan:
        """See `TableScanner`."""
        return replace(self, parquet=self.parquet.in_a_task())

    def read(self, files: Iterable[ScanFile]) -> Iterator[pa.RecordBatch]:
        """See `TableScanner`."""
        for file in files:
            if isinstance(file.only, InlinedRows):
                yield from self._inlined(file, file.only.rows)
            else:
                yield from self.parquet.read([file])

    def _inlined(self, file: ScanFile, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        bounds = (file.start, file.start + file.part_bytes)
        first, end = (rows.num_rows * place // file.size_bytes for place in bounds)
        scan = self.parquet
        types = types_of(scan.columns, scan.schema)
        found = matching(converted(rows.slice(first, end - first), types), scan.where, scan.schema)
        if found.num_rows:
            yield found
