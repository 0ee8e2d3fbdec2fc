"""Compares rows by key: which of them have the same key, and which of these is the last one.

Runs on executors, on the driver and in the delivery process. Keys are compared by value: decimals of one type
as numbers, strings and binaries by their bytes. NULL equals nothing; callers refuse such keys before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_values import numeric_array, numeric_scalar


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the column in one piece."""
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def _codes(columns: Sequence[pa.Array]) -> pa.Array:
    """Return a number for each row: equal for rows with equal values."""
    codes = columns[0].dictionary_encode().indices
    for column in columns[1:]:
        encoded = column.dictionary_encode()
        codes = _combined(codes, encoded.indices, len(encoded.dictionary)).dictionary_encode().indices
    return codes


@dataclass(frozen=True, slots=True)
class LastRows:
    """Which of some rows count. All numbers are int64."""

    rows: pa.Array
    """Numbers of the last row of each key, ascending."""
    tied: pa.Array
    """Numbers of other rows that no order separates from the last one of their key."""
    tied_with: pa.Array
    """For each of these, the number of that last row."""


def last_rows(keys: Sequence[pa.Array], order: Sequence[pa.Array]) -> LastRows:
    """Find the last row of each key.

    Args:
        keys: the key columns, without NULL
        order: columns that order the rows of a key, compared one after the other, without NULL
    """
    codes = _codes(keys)
    numbers, none = row_numbers(len(codes)), row_numbers(0)
    if pc.count_distinct(codes).as_py() == len(codes):
        return LastRows(numbers, none, none)
    names = [f"order.{number}" for number in range(len(order))]
    table = pa.Table.from_arrays([codes, *order], names=["code", *names])
    in_order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    sorted_codes = codes.take(in_order)
    is_last = pc.not_equal(sorted_codes.slice(0, len(codes) - 1), sorted_codes.slice(1))
    is_last = pa.concat_arrays([is_last, _true()])
    last = in_order.cast(pa.int64()).filter(is_last)
    last = last.take(pc.array_sort_indices(last))
    ranks = _codes([codes, *order])
    tied_with = last.take(pc.index_in(ranks, value_set=ranks.take(last)))
    is_tied = pc.and_(pc.is_valid(tied_with), pc.not_equal(tied_with, numbers))
    return LastRows(last, numbers.filter(is_tied), tied_with.filter(is_tied))


def row_numbers(count: int) -> pa.Array:
    """Return the numbers from 0, as int64."""
    return numeric_array(range(count))


def _true() -> pa.Array:
    return pc.equal(row_numbers(1), numeric_scalar(0))


class KeySet:
    """Keys to look for among the rows of files.

    Args:
        columns: the key columns, without NULL and without a key that comes twice
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self.columns = list(columns)
        self._values = [pc.unique(column) for column in columns]
        self._begins: list[pa.Array] = []
        """The different beginnings of keys with several columns, as numbers. The last ones are the keys."""
        begins: pa.Array | None = None
        for column, values in zip(columns, self._values, strict=True):
            own = pc.index_in(column, value_set=values)
            if begins is not None:
                combined = _combined(begins, own, len(values))
                self._begins.append(pc.unique(combined))
                own = pc.index_in(combined, value_set=self._begins[-1])
            begins = own

    def __len__(self) -> int:
        return len(self.columns[0])

    def find(self, columns: Sequence[pa.Array]) -> tuple[pa.Array, pa.Array]:
        """Return the numbers of the rows that have one of the keys, and which key each has (int64).

        Args:
            columns: the key columns of rows, with the types of the keys
        """
        found = pc.index_in(columns[0], value_set=self._values[0], skip_nulls=True)
        rows, which = pc.indices_nonzero(pc.is_valid(found)).cast(pa.int64()), found.drop_null()
        for column, values, begins in zip(columns[1:], self._values[1:], self._begins, strict=True):
            own = pc.index_in(column.take(rows), value_set=values, skip_nulls=True)
            found = pc.index_in(_combined(which, own, len(values)), value_set=begins, skip_nulls=True)
            rows, which = rows.filter(pc.is_valid(found)), found.drop_null()
        return rows, which.cast(pa.int64())


def _combined(first: pa.Array, second: pa.Array, seconds: int) -> pa.Array:
    """Return one number for each pair of numbers; NULL if one of them is NULL.

    Args:
        seconds: all second numbers are below it. At most 2**31, as the first ones, so no product overflows
    """
    scaled = pc.multiply(first.cast(pa.int64()), numeric_scalar(max(seconds, 1)))
    return pc.add(scaled, second.cast(pa.int64()))


def repeats(columns: Sequence[pa.Array]) -> bool:
    """Return True if two rows have the same key."""
    codes = _codes(columns)
    return bool(pc.count_distinct(codes).as_py() < len(codes))


def without_rows(rows: pa.Table, numbers: pa.Array) -> pa.Table:
    """Return the rows except those with these numbers."""
    kept = pc.invert(pc.is_in(row_numbers(rows.num_rows), value_set=numbers))
    return rows.filter(kept)
