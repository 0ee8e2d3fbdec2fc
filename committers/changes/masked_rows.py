"""Finds the rows of a table that a commit masks, because a batch replaces or deletes them.

Runs at the commit, on the files of the version that the commit is based on: other writers compact and delete
meanwhile, so positions are never stored. Of a file only the key columns are read, and only of row groups
whose bounds allow one of the keys.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..arrow_values import numeric_array, numeric_scalar
from ..contract import Changes
from ..error_causes import retryable
from ..errors import NEXT_TRY, PenstockError, TableNotSupportedError
from .key_files import Keys, OpenFile
from .keys import KeySet, one_array, row_numbers
from .last_changes import LastChanges
from .tombstones import Tombstones

_THREADS = min(os.cpu_count() or 1, 8)


@dataclass(frozen=True, slots=True)
class SearchedFile:
    """A data file of the table."""

    path: str
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """Values of columns that the file does not store: they are the same for all its rows."""
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    """Lowest and highest value of columns, for those where they are known. See `has_bounds`."""
    masked: pa.Array | None = None
    """Numbers of its rows that are deleted already (int64)."""


def has_bounds(data_type: pa.DataType) -> bool:
    """Return True if all formats compare the bounds of the type as Python does."""
    return bool(
        pa.types.is_integer(data_type) or pa.types.is_string(data_type) or pa.types.is_date32(data_type)
    )


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """The rows that a commit masks: their numbers (int64, ascending), by the path of their file."""

    in_table: Mapping[str, pa.Array]
    """Without rows that were deleted before."""
    in_new: Mapping[str, pa.Array]
    """Rows of the batch that lose against others."""


ReadMasked: TypeAlias = Callable[[Sequence[str]], Mapping[str, pa.Array]]
"""Returns the numbers of deleted rows (int64) by path, for those of the files that have some."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of one file that have one of the keys."""

    rows: pa.Array
    key: pa.Array
    """Which key each row has."""
    order: tuple[pa.Array, ...]
    """Their order, only if late rows are ignored."""

    def filter(self, mask: pa.Array) -> _Found:
        return _Found(
            self.rows.filter(mask), self.key.filter(mask), tuple([o.filter(mask) for o in self.order])
        )


@dataclass(frozen=True, slots=True)
class _Ordered:
    """The values of a key column, ascending."""

    values: Sequence[Any]
    numbers: pa.Array
    """The number of the key that has each of them (int64)."""

    @classmethod
    def of(cls, column: pa.Array) -> _Ordered:
        numbers = pc.array_sort_indices(column).cast(pa.int64())
        return cls(column.take(numbers).to_pylist(), numbers)

    def has_between(self, low: Any, high: Any) -> bool:
        """Return True if one of the values is in the bounds."""
        place = bisect_left(self.values, low)
        return place < len(self.values) and self.values[place] <= high

    def between(self, low: Any, high: Any) -> pa.Array:
        """Return the numbers of the keys whose value is in the bounds."""
        first = bisect_left(self.values, low)
        return self.numbers.slice(first, bisect_right(self.values, high, first) - first)


class KeySearch:
    """Finds the rows of the last changes of one manifest. Keeps what it has found, as files do not change:
    after a conflict it only reads those that are new in the table.

    Args:
        changes: names of the columns
        last: see `LastChanges`
        open_file: opens a data file
        field_ids: ids that identify the columns in files, in formats where their names may change
        other_names: with `field_ids`: names of columns in files that have no ids
        tombstones: of the table, if late rows are ignored
    """

    def __init__(
        self,
        changes: Changes,
        last: LastChanges,
        open_file: OpenFile,
        field_ids: Mapping[str, int] | None = None,
        other_names: Mapping[str, Collection[str]] | None = None,
        tombstones: Tombstones | None = None,
    ) -> None:
        self._tombstones = tombstones
        self._has_added_tombstones = False
        self._changes = changes
        self._last = last
        self._ignores_late = changes.late_rows == "ignore"
        self._open_file = open_file
        self._field_ids = field_ids or {}
        self._other_names = other_names or {}
        self._keys = KeySet(last.keys.columns)
        self._ordered = [
            _Ordered.of(column) if has_bounds(column.type) else None for column in last.keys.columns
        ]
        self._found: dict[str, _Found] = {}

    def masked_rows(
        self,
        files: Sequence[SearchedFile],
        new_files: Sequence[Sequence[SearchedFile]],
        read_masked: ReadMasked = lambda _: {},
    ) -> MaskedRows:
        """
        Args:
            files: all files of the table
            new_files: for each `WrittenKeys`, its data files
            read_masked: for files without `masked`; called only for those with one of the keys

        Raises:
            PenstockError: a file is damaged.
            RetryableError: a file cannot be read now.
        """
        files = [file for file in files if self._may_have_key(file)]
        self._search([file for file in files if file.path not in self._found])
        masked = {file.path: file.masked for file in files if file.masked is not None}
        with_key = [file.path for file in files if len(self._found[file.path].rows)]
        masked.update(read_masked([path for path in with_key if path not in masked]))
        found = {path: _without(self._found[path], masked.get(path)) for path in with_key}
        late = self._late_keys(found.values()) if self._ignores_late else _NONE
        if self._tombstones is not None:
            if not self._has_added_tombstones:
                self._tombstones.add(self._last.keys)
                self._has_added_tombstones = True
            late = pc.unique(pa.concat_arrays([late, self._tombstones.late_keys(self._last.keys)]))
        in_table = {}
        for path, one in found.items():
            rows = one.rows.filter(pc.invert(pc.is_in(one.key, value_set=late))) if len(late) else one.rows
            if len(rows):
                in_table[path] = rows
        return MaskedRows(in_table, self._losing_rows(late, new_files))

    def _may_have_key(self, file: SearchedFile) -> bool:
        for name, keys, column in zip(self._changes.keys, self._ordered, self._keys.columns, strict=True):
            if name in file.values and not pc.is_in(file.values[name], value_set=column).as_py():
                return False
            if keys is not None and name in file.bounds and not keys.has_between(*file.bounds[name]):
                return False
        return True

    def _keys_in(self, file: SearchedFile) -> KeySet:
        """The keys that are in the bounds of a file, as far as they are known."""
        fewest = None
        for name, keys in zip(self._changes.keys, self._ordered, strict=True):
            if keys is not None and name in file.bounds:
                some = keys.between(*file.bounds[name])
                fewest = some if fewest is None or len(some) < len(fewest) else fewest
        return self._keys if fewest is None or len(fewest) == len(self._keys) else self._keys.take(fewest)

    def _search(self, files: Sequence[SearchedFile]) -> None:
        def search(file: SearchedFile) -> _Found:
            return self._search_file(file, self._keys_in(file), with_order=self._ignores_late)

        if len(files) < 2:
            found = list(map(search, files))
        else:
            with ThreadPoolExecutor(_THREADS) as threads:
                found = list(threads.map(search, files))
        self._found.update((file.path, one) for file, one in zip(files, found, strict=True))

    def _late_keys(self, found: Iterable[_Found]) -> pa.Array:
        """Numbers of the keys for which the table has a newer row."""
        late = []
        for one in found:
            given = [order.take(one.key) for order in self._last.keys.order]
            late.append(one.key.filter(_is_greater(one.order, given)))
        return pc.unique(pa.concat_arrays(late)) if late else _NONE

    def _losing_rows(
        self, late: pa.Array, new_files: Sequence[Sequence[SearchedFile]]
    ) -> Mapping[str, pa.Array]:
        """The rows of the batch that lose against other rows of the batch, or of the table."""
        last = self._last
        masked: dict[str, pa.Array] = {}
        lost_late = [last.written_in.take(late), last.keys.take(late)] if len(late) else None
        for number, (keys, files) in enumerate(zip(last.losing, new_files, strict=True)):
            lost = [keys]
            if lost_late is not None:
                lost.append(lost_late[1].take(pc.indices_nonzero(pc.equal(lost_late[0], number))))
            of_part = Keys.concat(lost)
            of_part = of_part.take(pc.indices_nonzero(pc.invert(of_part.is_deleted)))
            if not len(of_part):
                continue
            searched = KeySet(of_part.columns)
            for file in files:
                rows = self._search_file(file, searched, with_order=False).rows
                if len(rows):
                    masked[file.path] = rows
        return masked

    def _search_file(self, file: SearchedFile, keys: KeySet, *, with_order: bool) -> _Found:
        wanted = [*self._changes.keys, *(self._changes.order_by if with_order else ())]
        types = [column.type for column in (*keys.columns, *(self._last.keys.order if with_order else ()))]
        parts: list[list[pa.Array]] = []
        numbers = [_NONE]
        try:
            with self._open_file(file.path) as stream:
                parquet = pq.ParquetFile(stream)
                names = self._stored_names(file.path, parquet.schema_arrow, wanted)
                first = 0
                for number in range(parquet.num_row_groups):
                    count = parquet.metadata.row_group(number).num_rows
                    stored = [name for name in names if name is not None]
                    if self._is_searched(parquet.metadata.row_group(number), names):
                        read = parquet.read_row_group(number, columns=stored, use_threads=False)
                        columns = [
                            stored_column(read, name, file.values.get(own), data_type)
                            for name, own, data_type in zip(names, wanted, types, strict=True)
                        ]
                        parts.append(columns)
                        numbers.append(pc.add(row_numbers(count), numeric_scalar(first)))
                    first += count
        except pa.ArrowException as error:
            raise PenstockError(
                f"The data file {file.path} cannot be read: {error}. Nothing was committed. Restore it from "
                "a backup of the storage."
            ) from error
        except OSError as error:
            raise retryable(error)(
                f"The data file {file.path} cannot be read: {error}. Nothing was committed. Check that the "
                f"storage is reachable. {NEXT_TRY}"
            ) from error
        if not parts:
            return _Found(_NONE, _NONE, tuple([pa.nulls(0, kind) for kind in types[len(keys.columns) :]]))
        columns = list(map(pa.concat_arrays, zip(*parts, strict=True)))
        rows, key = keys.find(columns[: len(keys.columns)])
        order = tuple([column.take(rows) for column in columns[len(keys.columns) :]])
        return _Found(pa.concat_arrays(numbers).take(rows), key, order)

    def _stored_names(self, path: str, schema: pa.Schema, wanted: Sequence[str]) -> list[str | None]:
        """Return the names of columns in a file; None for those that it does not have.

        Raises:
            TableNotSupportedError: it does not tell which column is which.
        """
        if not self._field_ids:
            return [name if name in schema.names else None for name in wanted]
        ids = {column.name: (column.metadata or {}).get(b"PARQUET:field_id") for column in schema}
        by_id = {int(number): name for name, number in ids.items() if number is not None}
        if by_id:
            return [by_id.get(self._field_ids[name]) for name in wanted]
        if not self._other_names:
            raise TableNotSupportedError(
                f"The data file {path} has no field ids, and the table has no name mapping, so its columns "
                "are unknown. Nothing was committed. Set the property schema.name-mapping.default of the "
                "table."
            )
        known = [self._other_names.get(name, ()) for name in wanted]
        return [next((name for name in schema.names if name in names), None) for names in known]

    def _is_searched(self, group: pq.RowGroupMetaData, names: Sequence[str | None]) -> bool:
        """Return False if the bounds of a row group exclude all keys."""
        keys = {
            name: some
            for name, some in zip(names, self._ordered, strict=False)
            if some is not None
            and some.values
            and name is not None
            and "." not in name  # the path of a nested column has dots, too
        }
        for number in range(group.num_columns):
            column = group.column(number)
            some = keys.get(column.path_in_schema)
            bounds = column.statistics if some is not None and column.is_stats_set else None
            if some is None or bounds is None or not bounds.has_min_max:
                continue
            if isinstance(bounds.min, type(some.values[0])) and not some.has_between(bounds.min, bounds.max):
                return False
        return True


_NONE = numeric_array(())


def stored_column(
    read: pa.Table, name: str | None, value: pa.Scalar | None, data_type: pa.DataType
) -> pa.Array:
    """Return a column of a row group: as it is stored, or the same value for all rows."""
    if name is not None:
        return one_array(read.column(name)).cast(data_type)
    if value is not None:
        return pa.repeat(value.cast(data_type), read.num_rows)
    return pa.nulls(read.num_rows, data_type)  # the file is older than the column


def _without(found: _Found, masked: pa.Array | None) -> _Found:
    if masked is None or not len(found.rows):
        return found
    return found.filter(pc.invert(pc.is_in(found.rows, value_set=masked)))


def _is_greater(some: Sequence[pa.Array], others: Sequence[pa.Array]) -> pa.Array:
    """Compare columns one after the other. NULL is smaller than everything."""
    is_greater: pa.Array | None = None
    is_equal: pa.Array | None = None
    for one, other in zip(some, others, strict=True):
        greater = pc.fill_null(pc.greater(one, other), _FALSE)
        equal = pc.fill_null(pc.equal(one, other), _FALSE)
        if is_greater is None or is_equal is None:
            is_greater, is_equal = greater, equal
        else:
            is_greater = pc.or_(is_greater, pc.and_(is_equal, greater))
            is_equal = pc.and_(is_equal, equal)
    assert is_greater is not None, "lateRows=ignore needs an order"
    return is_greater


_FALSE = pc.equal(numeric_scalar(0), numeric_scalar(1))
