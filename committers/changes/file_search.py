"""Finds the rows of data files that have one of some keys.

Runs at the commit, or in the tasks of a Spark job that the delivery process starts for a large table. Of a
file only the key columns are read, and only of row groups whose bounds allow one of the keys.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..arrow_values import numeric_array, numeric_scalar
from ..error_causes import retryable
from ..errors import NEXT_TRY, PenstockError, TableNotSupportedError
from ..file_tables.manifest import LakeManifest
from .key_files import OpenFile
from .keys import KeySet, one_array, row_numbers

_THREADS = min(os.cpu_count() or 1, 8)
NONE = numeric_array(())
"""No numbers (int64)."""


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
    size_bytes: int = 0


def has_bounds(data_type: pa.DataType) -> bool:
    """Return True if all formats compare the bounds of the type as Python does."""
    return bool(
        pa.types.is_integer(data_type) or pa.types.is_string(data_type) or pa.types.is_date32(data_type)
    )


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of one file that have one of the keys."""

    rows: pa.Array
    """Their numbers (int64), ascending."""
    key: pa.Array
    """The number of the key that each row has (int64)."""
    values: tuple[pa.Array, ...]
    """Further columns of the rows."""

    def filter(self, mask: pa.Array) -> FoundRows:
        values = tuple([column.filter(mask) for column in self.values])
        return FoundRows(self.rows.filter(mask), self.key.filter(mask), values)

    def without(self, masked: pa.Array | None) -> FoundRows:
        """Leave out rows with these numbers."""
        if masked is None or not len(self.rows):
            return self
        return self.filter(pc.invert(pc.is_in(self.rows, value_set=masked)))


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


class FileSearch:
    """Finds the rows of single files that have one of the keys. Can be pickled.

    Args:
        names: of the key columns, and of further columns whose values are returned
        keys: the key columns, without NULL and without a key that comes twice
        others: types of the further columns
        field_ids: ids that identify the columns in files, in formats where their names may change
        other_names: with `field_ids`: names of columns in files that have no ids
    """

    def __init__(
        self,
        names: Sequence[str],
        keys: Sequence[pa.Array],
        others: Sequence[pa.DataType] = (),
        field_ids: Mapping[str, int] | None = None,
        other_names: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._names = tuple(names)
        self._others = tuple(others)
        self._field_ids = dict(field_ids or {})
        self._other_names = dict(other_names or {})
        self._keys = KeySet(keys)
        self._ordered = [_Ordered.of(column) if has_bounds(column.type) else None for column in keys]

    def __reduce__(self) -> tuple[type[FileSearch], tuple[object, ...]]:
        keys = self._keys.columns
        return FileSearch, (self._names, keys, self._others, self._field_ids, self._other_names)

    @property
    def _key_columns(self) -> Iterator[tuple[str, _Ordered | None, pa.Array]]:
        return zip(self._names, self._ordered, self._keys.columns, strict=False)

    def may_have_key(self, file: SearchedFile) -> bool:
        """Return False if what is known of the file excludes all keys."""
        for name, keys, column in self._key_columns:
            if name in file.values and not pc.is_in(file.values[name], value_set=column).as_py():
                return False
            if keys is not None and name in file.bounds and not keys.has_between(*file.bounds[name]):
                return False
        return True

    def __call__(self, file: SearchedFile, open_file: OpenFile) -> FoundRows:
        """
        Raises:
            PenstockError: the file is damaged.
            TableNotSupportedError: it does not tell which column is which.
            RetryableError: it cannot be read now.
        """
        types = [*(column.type for column in self._keys.columns), *self._others]
        count_of_keys = len(self._keys.columns)
        parts: list[list[pa.Array]] = []
        numbers = [NONE]
        try:
            with open_file(file.path) as stream:
                parquet = pq.ParquetFile(stream)
                names = self._stored_names(file.path, parquet.schema_arrow)
                first = 0
                for number in range(parquet.num_row_groups):
                    count = parquet.metadata.row_group(number).num_rows
                    stored = [name for name in names if name is not None]
                    if self._is_searched(parquet.metadata.row_group(number), names):
                        read = parquet.read_row_group(number, columns=stored, use_threads=False)
                        columns = [
                            stored_column(read, name, file.values.get(own), data_type)
                            for name, own, data_type in zip(names, self._names, types, strict=True)
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
            return FoundRows(NONE, NONE, tuple([pa.nulls(0, kind) for kind in self._others]))
        columns = list(map(pa.concat_arrays, zip(*parts, strict=True)))
        rows, key = self._keys_in(file).find(columns[:count_of_keys])
        values = tuple([column.take(rows) for column in columns[count_of_keys:]])
        return FoundRows(pa.concat_arrays(numbers).take(rows), key, values)

    def _keys_in(self, file: SearchedFile) -> KeySet:
        """The keys that are in the bounds of a file, as far as they are known."""
        fewest = None
        for name, keys, _ in self._key_columns:
            if keys is not None and name in file.bounds:
                some = keys.between(*file.bounds[name])
                fewest = some if fewest is None or len(some) < len(fewest) else fewest
        return self._keys if fewest is None or len(fewest) == len(self._keys) else self._keys.take(fewest)

    def _stored_names(self, path: str, schema: pa.Schema) -> list[str | None]:
        """Return the names of columns in a file; None for those that it does not have.

        Raises:
            TableNotSupportedError: it does not tell which column is which.
        """
        if not self._field_ids:
            return [name if name in schema.names else None for name in self._names]
        ids = {column.name: (column.metadata or {}).get(b"PARQUET:field_id") for column in schema}
        by_id = {int(number): name for name, number in ids.items() if number is not None}
        if by_id:
            return [by_id.get(self._field_ids[name]) for name in self._names]
        if not self._other_names:
            raise TableNotSupportedError(
                f"The data file {path} has no field ids, and the table has no name mapping, so its columns "
                "are unknown. Nothing was committed. Set the property schema.name-mapping.default of the "
                "table."
            )
        known = [self._other_names.get(name, ()) for name in self._names]
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


class SearchFiles(Protocol):
    """Searches many files."""

    def __call__(
        self, content: LakeManifest, search: FileSearch, files: Sequence[SearchedFile], open_file: OpenFile
    ) -> Sequence[FoundRows]:
        """Return the rows of each file, in the order of the files.

        Args:
            content: of the manifest to commit
            open_file: opens a file in this process

        Raises: as `FileSearch`.
        """
        ...


def search_here(
    content: LakeManifest, search: FileSearch, files: Sequence[SearchedFile], open_file: OpenFile
) -> Sequence[FoundRows]:
    """Search in threads of this process. See `SearchFiles`."""
    if len(files) < 2:
        return [search(file, open_file) for file in files]
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda file: search(file, open_file), files))


Search: TypeAlias = Callable[[FileSearch, Sequence[SearchedFile], OpenFile], Sequence[FoundRows]]
"""A `SearchFiles` for one manifest."""


class TableSearch:
    """Finds the rows of a table that have one of the keys. Keeps what it has found, as files do not change:
    after a conflict it only reads those that are new in the table.

    Args:
        names: of the key columns
        keys: their values, without NULL and without a key that comes twice
        wanted: other columns, and their types
        open_file: opens a data file in this process
        search: searches the files of the table
        field_ids, other_names: see `FileSearch`
    """

    def __init__(
        self,
        names: Sequence[str],
        keys: Sequence[pa.Array],
        wanted: Mapping[str, pa.DataType],
        open_file: OpenFile,
        search: Search,
        field_ids: Mapping[str, int] | None = None,
        other_names: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._open_file = open_file
        self._search_files = search
        self._search_for = partial(FileSearch, field_ids=field_ids, other_names=other_names)
        self._search = self._search_for([*names, *wanted], keys, list(wanted.values()))
        self._found: dict[str, FoundRows] = {}

    def find(self, files: Sequence[SearchedFile]) -> Mapping[str, FoundRows]:
        """Return the rows with one of the keys by path, for the files that may have some.

        Raises: as `FileSearch`.
        """
        files = [file for file in files if self._search.may_have_key(file)]
        unknown = [file for file in files if file.path not in self._found]
        rows = self._search_files(self._search, unknown, self._open_file)
        self._found.update((file.path, one) for file, one in zip(unknown, rows, strict=True))
        return {file.path: self._found[file.path] for file in files}

    def find_in(self, file: SearchedFile, names: Sequence[str], keys: Sequence[pa.Array]) -> FoundRows:
        """Return the rows of one file that have one of other keys.

        Args:
            names: the key columns
        """
        return self._search_for(names, keys)(file, self._open_file)


class SearchesFiles:
    """A committer of changes. Mix-in."""

    _search_files: SearchFiles = staticmethod(search_here)

    def search_with(self, search: SearchFiles) -> None:
        """Let commits search the files of the table with it."""
        self._search_files = search


def stored_column(
    read: pa.Table, name: str | None, value: pa.Scalar | None, data_type: pa.DataType
) -> pa.Array:
    """Return a column of a row group: as it is stored, or the same value for all rows."""
    if name is not None:
        return one_array(read.column(name)).cast(data_type)
    if value is not None:
        return pa.repeat(value.cast(data_type), read.num_rows)
    return pa.nulls(read.num_rows, data_type)  # the file is older than the column
