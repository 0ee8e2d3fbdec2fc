"""Reads the data files of a DuckLake, and the rows that its catalog has. Tasks need no duckdb for it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...committers.arrow_values import null_scalar, numeric_scalar, string_array
from ...committers.changes.keys import row_numbers
from ...committers.cleaning.regular_files import open_input
from ...committers.errors import TableNotSupportedError
from ...writers.delta.filesystem import open_filesystem
from ..predicates import Predicate
from ..scan import Scan, ScanFile

_SNAPSHOT = "_ducklake_internal_snapshot_id"
"""Column of files with rows of several snapshots: the snapshot in which a row was added or deleted."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Rows by the snapshot that has added them: the snapshots after one, up to another one."""

    after: int
    until: int

    def has(self, origin: int) -> bool:
        return self.after < origin <= self.until

    def overlap(self, other: Origins) -> bool:
        return self.after < other.until and other.after < self.until

    def contain(self, other: Origins) -> bool:
        return self.after <= other.after and other.until <= self.until


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """Which rows of a data file are not in a snapshot, or not wanted."""

    snapshot: int
    files: tuple[str, ...] = ()
    """Delete files that apply. They may have deletions of later snapshots."""
    numbers: pa.Array | None = None
    """Rows that the catalog says are deleted (int64)."""
    origins: tuple[Origins, ...] = ()
    """If given, rows with other origins are left out."""

    @property
    def are_none(self) -> bool:
        return not self.files and self.numbers is None and not self.origins

    def joined(self, other: DeletedRows) -> DeletedRows | None:
        """Return what says the same of the same file as both do; None if there is nothing."""
        parts = (self, other)
        if any(one.files or one.numbers is not None or not one.origins for one in parts):
            return None
        *before, last = self.origins
        first, *after = other.origins
        is_next = last.until == first.after
        middle = (Origins(last.after, first.until),) if is_next else (last, first)
        return DeletedRows(other.snapshot, origins=(*before, *middle, *after))


@dataclass(frozen=True, slots=True)
class NewlyDeleted:
    """Rows of a data file that are not in a snapshot, and are in the one before."""

    now: DeletedRows
    before: DeletedRows


def joined(files: Iterable[ScanFile]) -> list[ScanFile]:
    """Return files, with the rows of one that were added by several snapshots together: it is read once. In
    streams with changes, each row has the values of its snapshot.
    """
    found: list[ScanFile] = []
    places: dict[tuple[str, tuple[tuple[str, Any], ...]], int] = {}
    for file in files:
        key = file.path, file.values
        place = places.get(key)
        if place is not None:
            before, deletes = found[place].deletes, file.deletes
            if isinstance(before, DeletedRows) and isinstance(deletes, DeletedRows):
                both = before.joined(deletes)
                if both is not None:
                    found[place] = replace(file, deletes=both)
                    continue
        places[key] = len(found)
        found.append(file)
    return found


@dataclass(frozen=True, slots=True)
class InlinedRows:
    """Rows that are in the catalog. Their columns have field ids."""

    rows: pa.RecordBatch = field(repr=False)


@dataclass(frozen=True, slots=True)
class DuckLakeFiles:
    """See `DataFiles`."""

    table: str
    """For messages."""
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
        return self._numbers(file.path, file.deletes)

    def _numbers(self, path: str, deleted: DeletedRows) -> pa.Array:
        parts = [] if deleted.numbers is None else [deleted.numbers]
        parts += [self._in_delete_file(one, deleted.snapshot) for one in deleted.files]
        if deleted.origins:
            parts.append(self._of_others(path, deleted.origins))
        found = pc.unique(pa.concat_arrays([row_numbers(0), *parts]))
        return found.take(pc.sort_indices(found))

    def _in_delete_file(self, path: str, snapshot: int) -> pa.Array:
        with self.open(path) as stream:
            parquet = pq.ParquetFile(stream)
            rows = parquet.read([name for name in ("pos", _SNAPSHOT) if name in parquet.schema_arrow.names])
        if _SNAPSHOT in rows.column_names:
            rows = rows.filter(pc.less_equal(rows[_SNAPSHOT], numeric_scalar(snapshot)))
        return rows["pos"].combine_chunks().cast(pa.int64())

    def _of_others(self, path: str, wanted: Sequence[Origins]) -> pa.Array:
        with self.open(path) as stream:
            own = pq.ParquetFile(stream).read([_SNAPSHOT])[_SNAPSHOT].combine_chunks()
        is_other = pa.repeat(True, len(own))
        for origins in wanted:
            is_before = pc.less_equal(own, numeric_scalar(origins.after))
            is_later = pc.greater(own, numeric_scalar(origins.until))
            is_other = pc.and_(is_other, pc.or_(is_before, is_later))
        return row_numbers(len(own)).filter(is_other)

    def only_rows(self, file: ScanFile) -> pa.Array | None:
        """See `DataFiles`."""
        if not isinstance(file.only, NewlyDeleted):
            return None
        now, before = (self._numbers(file.path, one) for one in (file.only.now, file.only.before))
        return now.filter(pc.invert(pc.is_in(now, value_set=before)))

    def value(self, name: str, value: Any, data_type: pa.DataType) -> pa.Scalar:
        """Return a default value, one of the folder of a file, or one of a change feed.

        Raises:
            TableNotSupportedError: it cannot be converted.
        """
        if value is None:
            return null_scalar(data_type)
        if not isinstance(value, str):
            return pa.scalar(value, data_type)
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
    """How the rows of snapshots are read. See `TableScanner`."""

    parquet: Scan

    def with_where(self, where: Predicate | None) -> DuckLakeScan:
        return replace(self, parquet=self.parquet.with_where(where))

    def named(self, table: str) -> DuckLakeScan:
        """See `StreamScanner`."""
        return replace(self, parquet=self.parquet.named(table))

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
        found = self.parquet.converted(rows.slice(first, end - first), file)
        if found.num_rows:
            yield found
