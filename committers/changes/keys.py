"""Compares rows by key: which of them have the same key, and which of these is the last one.

Runs on executors, on the driver and in the delivery process. Keys are compared by value: decimals of one type
as numbers, strings and binaries by their bytes. NULL equals nothing; callers refuse such keys before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_values import numeric_scalar

TRUE = pc.equal(numeric_scalar(0), numeric_scalar(0))
FALSE = pc.equal(numeric_scalar(0), numeric_scalar(1))


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the column in one piece."""
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def key_codes(columns: Sequence[pa.Array]) -> pa.Array:
    """Return a number for each row: equal for rows with equal values."""
    codes = columns[0].dictionary_encode().indices
    for column in columns[1:]:
        encoded = column.dictionary_encode()
        codes = _combined(codes, encoded.indices, len(encoded.dictionary)).dictionary_encode().indices
    return codes


def _combined(first: pa.Array, second: pa.Array, seconds: int) -> pa.Array:
    """Return one number for each pair of numbers, both below 2**31.

    Args:
        seconds: all second numbers are below it
    """
    scaled = pc.multiply(first.cast(pa.int64()), numeric_scalar(max(seconds, 1)))
    return pc.add(scaled, second.cast(pa.int64()))


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
    codes = key_codes(keys)
    numbers, none = row_numbers(len(codes)), row_numbers(0)
    if pc.count_distinct(codes).as_py() == len(codes):
        return LastRows(numbers, none, none)
    names = [f"order.{number}" for number in range(len(order))]
    table = pa.Table.from_arrays([codes, *order], names=["code", *names])
    in_order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
    sorted_codes = codes.take(in_order)
    is_last = pc.not_equal(sorted_codes.slice(0, len(codes) - 1), sorted_codes.slice(1))
    is_last = pa.concat_arrays([is_last, pa.repeat(TRUE, 1)])
    last = in_order.cast(pa.int64()).filter(is_last)
    last = last.take(pc.array_sort_indices(last))
    ranks = key_codes([codes, *order])
    tied_with = last.take(pc.index_in(ranks, value_set=ranks.take(last)))
    is_tied = pc.and_(pc.is_valid(tied_with), pc.not_equal(tied_with, numbers))
    return LastRows(last, numbers.filter(is_tied), tied_with.filter(is_tied))


def row_numbers(count: int) -> pa.Array:
    """Return the numbers from 0, as int64."""
    # as fast as memory; from a range of Python it would take a second for ten million rows
    return pc.indices_nonzero(pa.repeat(TRUE, count)).cast(pa.int64())


class KeySet:
    """Keys to look for among the rows of files, with the hash join of Arrow.

    Args:
        columns: the key columns, without NULL and without a key that comes twice
        numbers: of the keys (int64); without it, from 0
    """

    def __init__(self, columns: Sequence[pa.Array], numbers: pa.Array | None = None) -> None:
        self.columns = list(columns)
        self._names = [f"key.{number}" for number in range(len(columns))]
        own = row_numbers(len(self)) if numbers is None else numbers
        self._table = pa.Table.from_arrays([*columns, own], names=[*self._names, "key"])

    def __len__(self) -> int:
        return len(self.columns[0])

    def take(self, numbers: pa.Array) -> KeySet:
        """Return the keys with these numbers, which they keep. All keys must have their number from 0."""
        return KeySet([column.take(numbers) for column in self.columns], numbers)

    def find(self, columns: Sequence[pa.Array]) -> tuple[pa.Array, pa.Array]:
        """Return the numbers of the rows that have one of the keys, ascending, and the key of each (int64).

        Args:
            columns: the key columns of rows, with the types of the keys
        """
        count = len(columns[0])
        rows = pa.Table.from_arrays([*columns, row_numbers(count)], names=[*self._names, "row"])
        larger, smaller = (rows, self._table) if count >= len(self) else (self._table, rows)
        found = larger.join(smaller, self._names, join_type="inner", use_threads=False)
        found = found.select(["row", "key"]).sort_by("row")
        return one_array(found.column("row")), one_array(found.column("key"))
