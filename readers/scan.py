"""Reads the files of a table as Arrow batches, with bounded memory.

A scan is planned on the driver, and read anywhere: it can be pickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..committers.arrow_values import null_scalar, numeric_scalar
from ..committers.changes.keys import row_numbers
from ..committers.error_causes import retryable
from ..committers.errors import PenstockError, SchemaMismatchError
from ..writers.parquet.columns import without_views
from .predicates import Predicate
from .row_groups import group_ranges, is_in_bytes
from .rows import matching, types_of
from .shapes import FIELD_ID, NamedField, conform, in_table, named_as

BATCH_BYTES = 8 * 1024 * 1024
"""Approximate size of a batch."""
BATCH_ROWS_MAX = 64 * 1024
_PROBED_ROWS = 1024
_COLUMN_BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ScanFile:
    """A data file of a scan, or a part of it."""

    path: str
    """As the files of the scan open it."""
    size_bytes: int
    values: tuple[tuple[str, Any], ...] = ()
    """Values of columns that the file does not store, as the format has them."""
    deletes: Any = None
    """What says which of its rows are deleted, as the format has it; None: nothing."""
    only: Any = None
    """What says which of its rows alone are read, as the format has it; None: all."""
    start: int = 0
    """Only row groups whose middle is at or after this byte are read, …"""
    end: int | None = None
    """… and before this one."""
    mapping: tuple[NamedField, ...] = ()
    """Field ids of its columns, by their names in the file. If given, its own field ids do not count."""
    is_divisible: bool = True
    """Several tasks may each read a part of it."""

    @property
    def part_bytes(self) -> int:
        return (self.size_bytes if self.end is None else self.end) - self.start


class DataFiles(Protocol):
    """Opens the data files of a table. Can be pickled; may contain secrets, which are not shown."""

    def open(self, path: str) -> AbstractContextManager[pa.NativeFile]: ...

    def deleted_rows(self, file: ScanFile) -> pa.Array | None:
        """Return the numbers of the deleted rows of a file (int64, ascending); None if there are none."""
        ...

    def only_rows(self, file: ScanFile) -> pa.Array | None:
        """Return the numbers of the rows of a file that alone are read (int64, ascending); None: all."""
        ...

    def value(self, name: str, value: Any, data_type: pa.DataType) -> pa.Scalar:
        """Return a value of `ScanFile.values`."""
        ...


@dataclass(frozen=True)
class _Rows:
    """Which rows of a file are read."""

    only: pa.Array | None
    """Numbers of rows (int64, ascending); None: all …"""
    deleted: pa.Array | None
    """… but these. Only one of both is given."""

    @property
    def are_all(self) -> bool:
        return self.only is None and self.deleted is None

    def are_in(self, first: int, count: int) -> bool:
        """Return False if none of the rows from `first` on is read."""
        if self.only is not None:
            return len(_between(self.only, first, count)) > 0
        return self.deleted is None or len(_between(self.deleted, first, count)) < count

    def of(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """
        Args:
            first: number of the batch's first row in the file
        """
        if self.only is not None:
            return without_views(batch).filter(self._is_in(self.only, batch, first))
        if self.deleted is None or not len(_between(self.deleted, first, batch.num_rows)):
            return batch
        return without_views(batch).filter(pc.invert(self._is_in(self.deleted, batch, first)))

    def _is_in(self, numbers: pa.Array, batch: pa.RecordBatch, first: int) -> pa.Array:
        own = pc.add(row_numbers(batch.num_rows), numeric_scalar(first))
        return pc.is_in(own, value_set=_between(numbers, first, batch.num_rows))


def _between(numbers: pa.Array, first: int, count: int) -> pa.Array:
    """Return the numbers from `first` on, below `first + count`."""
    is_here = pc.and_(
        pc.greater_equal(numbers, numeric_scalar(first)), pc.less(numbers, numeric_scalar(first + count))
    )
    return numbers.filter(is_here)


@dataclass(frozen=True)
class Scan:
    """How the Parquet files of one version of a table are read. See `TableScanner`."""

    table: str
    """For messages."""
    columns: pa.Schema
    """Those of the table that are read, with their field ids in formats where names may change."""
    schema: pa.Schema
    """Of the rows that are returned."""
    files: DataFiles
    where: Predicate | None = None
    """Rows that do not match are left out. Compares columns of `columns`."""
    mapping: tuple[NamedField, ...] = ()
    """See `in_table`."""
    use_threads: bool = True
    """False: where other tasks use the other cores."""

    def with_where(self, where: Predicate | None) -> Scan:
        return replace(self, where=where)

    def named(self, table: str) -> Scan:
        """See `StreamScanner`."""
        return replace(self, table=table)

    def in_a_task(self) -> Scan:
        """Return the scan for a task that runs beside others on the same machine."""
        return replace(self, use_threads=False)

    @cached_property
    def types(self) -> pa.Schema:
        """The columns that are read, with the types of the returned rows where they are among them."""
        return types_of(self.columns, self.schema)

    def read(self, files: Iterable[ScanFile]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files, one file after the other.

        Raises:
            RetryableError: a file cannot be read now, or is missing.
            PenstockError: a file is damaged.
        """
        for file in files:
            with self._errors(file):
                yield from self._read(file)

    def _read(self, file: ScanFile) -> Iterator[pa.RecordBatch]:
        rows = _Rows(self.files.only_rows(file), self.files.deleted_rows(file))
        if rows.only is not None and not len(rows.only):
            return
        with self.files.open(file.path) as stream:
            parquet = pq.ParquetFile(
                stream, buffer_size=_COLUMN_BUFFER_BYTES, coerce_int96_timestamp_unit="us"
            )
            first_rows = _first_rows(parquet.metadata)
            groups = [
                group
                for group in self._groups(parquet, file)
                if rows.are_in(first_rows[group], parquet.metadata.row_group(group).num_rows)
            ]
            names = self._stored(parquet.schema_arrow, file)
            if not names and groups:
                yield from self._without_columns(parquet, groups, rows, file)
                return
            sizes = {"batch_size": _batch_rows(parquet, groups, names)} if groups else {}
            runs = [groups] if rows.are_all else [[group] for group in groups]
            for run in runs if groups else ():
                batches = parquet.iter_batches(
                    row_groups=run, columns=names, use_threads=self.use_threads, **sizes
                )
                first = first_rows[run[0]]
                for batch in batches:
                    kept = rows.of(batch, first)
                    first += batch.num_rows
                    if kept.num_rows:
                        found = self.converted(kept, file)
                        if found.num_rows:
                            yield found

    def _without_columns(
        self,
        parquet: pq.ParquetFile,
        groups: Sequence[int],
        rows: _Rows,
        file: ScanFile,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of which the file stores no column."""
        first_rows = _first_rows(parquet.metadata)
        for group in groups:
            count = parquet.metadata.row_group(group).num_rows
            for first in range(0, count, BATCH_ROWS_MAX):
                some = min(BATCH_ROWS_MAX, count - first)
                empty = pa.RecordBatch.from_arrays([pa.nulls(some)], names=["rows"])
                kept = rows.of(empty, first_rows[group] + first)
                if kept.num_rows:
                    found = self.converted(kept, file)
                    if found.num_rows:
                        yield found

    def _groups(self, parquet: pq.ParquetFile, file: ScanFile) -> list[int]:
        """Return the row groups that may have matching rows."""
        metadata = parquet.metadata
        own = [
            number
            for number in range(metadata.num_row_groups)
            if is_in_bytes(metadata.row_group(number), file.start, file.end)
        ]
        if self.where is None:
            return own
        ranges_of = group_ranges(parquet, self._names_in(parquet.schema_arrow, file), self.types)
        return [number for number in own if self.where.may_match(ranges_of(metadata.row_group(number)))]

    def _stored(self, stored: pa.Schema, file: ScanFile) -> list[str]:
        """Return the columns of a file that are needed."""
        wanted = set(self._names_in(stored, file).values())
        return [name for name in stored.names if name in wanted]

    def _names_in(self, stored: pa.Schema, file: ScanFile) -> Mapping[str, str]:
        """Return the names in a file of the columns that are read and that it stores."""
        ids = {field.name: field.metadata[FIELD_ID] for field in self.columns if _has_id(field)}
        if not ids:
            return {name: name for name in self.columns.names if name in stored.names}
        if any(map(_has_id, stored)) and not file.mapping:
            by_id = {one.metadata[FIELD_ID]: one.name for one in stored if _has_id(one)}
        else:
            mapping = file.mapping or self.mapping
            named = ((named_as(one.name, mapping), one.name) for one in stored)
            by_id = {str(known.field_id).encode(): name for known, name in named if known is not None}
        return {name: by_id[number] for name, number in ids.items() if number in by_id}

    def converted(self, rows: pa.RecordBatch, file: ScanFile) -> pa.RecordBatch:
        """Return the matching rows of a file in the schema of the scan."""
        values = dict(file.values)
        stored = rows.select([])
        if self._names_in(rows.schema, file):
            mapping, is_own = file.mapping or self.mapping, bool(file.mapping)
            stored = in_table(without_views(rows), self.columns, mapping, file.path, only_by_name=is_own)
        columns = [self._column(stored, field, values, file.path, rows.num_rows) for field in self.types]
        found = pa.RecordBatch.from_arrays(columns, schema=self.types) if columns else rows
        return matching(found, self.where, self.schema)

    def _column(
        self, stored: pa.RecordBatch, field: pa.Field, values: Mapping[str, Any], path: str, count: int
    ) -> pa.Array:
        number = stored.schema.get_field_index(field.name)
        if number >= 0:
            return conform(stored.column(number), field.type)
        if field.name in values:
            value = self.files.value(field.name, values[field.name], field.type)
        else:
            value = null_scalar(field.type)
        if not field.nullable and not value.is_valid:
            raise SchemaMismatchError(
                f"The data file {path} of {self.table} has no values of the column {field.name!r}, which is "
                "NOT NULL. Nothing more was read. Rewrite the file, or let the column be NULL."
            )
        return pa.repeat(value, count)

    @contextmanager
    def _errors(self, file: ScanFile) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise retryable(error)(
                f"The data file {file.path} of {self.table} is missing: the table was changed, and its old "
                "files were deleted, while it was read. Read it again. If that does not help, restore the "
                "file from a backup of the storage; a stream can also start with a new checkpoint."
            ) from error
        except OSError as error:
            raise retryable(error)(
                f"The data file {file.path} of {self.table} cannot be read: {error}. Check that the storage "
                "is reachable, and read again."
            ) from error
        except pa.ArrowException as error:
            raise PenstockError(
                f"The data file {file.path} of {self.table} cannot be read: {error}. Restore it from a "
                "backup of the storage."
            ) from error


def _has_id(field: pa.Field) -> bool:
    return FIELD_ID in (field.metadata or {})


def _first_rows(metadata: pq.FileMetaData) -> list[int]:
    """Return the number of the first row of each row group."""
    found, first = [], 0
    for number in range(metadata.num_row_groups):
        found.append(first)
        first += metadata.row_group(number).num_rows
    return found


def _batch_rows(parquet: pq.ParquetFile, groups: Sequence[int], names: Sequence[str]) -> int:
    """Return the number of rows with about `BATCH_BYTES`. The values of a column may be shorter in the file
    than in memory, so some are read.
    """
    metadata = parquet.metadata
    if sum(metadata.row_group(number).num_rows for number in groups) <= _PROBED_ROWS:
        return _PROBED_ROWS
    rows = parquet.iter_batches(_PROBED_ROWS, row_groups=groups, columns=names, use_threads=False)
    probe = next(rows)  # row groups may be empty, but there are more rows than these
    row_bytes = max(probe.nbytes / max(probe.num_rows, 1), 1)
    return max(min(int(BATCH_BYTES / row_bytes), BATCH_ROWS_MAX), 1)
