"""Sorts rows within a row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_scalar
from ...committers.contract import SortField
from .columns import field_at, reach
from .transforms import apply_transform, transform_problem


def sort_problems(schema: pa.Schema, order: Sequence[SortField]) -> Iterator[str]:
    """Why rows of this schema cannot be sorted this way."""
    for sort in order:
        field = field_at(schema, sort.column)
        name = ".".join(sort.column)
        if field is None:
            columns = ", ".join(schema.names)
            yield (
                f"Column '{name}' of the sort order is not in the table's data files; columns: {columns}. "
                "Fix sortWithin."
            )
        elif problem := transform_problem(sort.transform, field.type):
            yield (
                f"Cannot sort within row groups by {sort.transform} of '{name}' ({field.type}): {problem}."
                " Leave it out of sortWithin or of the table's order."
            )


def sort_rows(rows: pa.Table, order: Sequence[SortField]) -> pa.Table:
    """Sort the rows; equal rows keep their order.

    Numbers are ordered as in Iceberg and Java: -0.0 before 0.0, NaN after all others.
    """
    rows = rows.combine_chunks()
    keys: list[pa.Array] = []
    directions: list[str] = []
    for sort in order:
        column = rows.column(sort.column[0])
        key = apply_transform(sort.transform, reach(_one_chunk(column), sort.column[1:]))
        if sort.nulls_first and key.null_count:  # NULLs are last by default
            keys.append(key.is_valid())
            directions.append("ascending")
        keys.append(_comparable(key))
        directions.append("descending" if sort.is_descending else "ascending")
    names = [str(numeric_scalar) for numeric_scalar in range(len(keys))]
    indices = pc.sort_indices(pa.table(keys, names), sort_keys=list(zip(names, directions, strict=True)))
    return rows.take(indices)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _comparable(key: pa.Array) -> pa.Array:
    """Map floating-point numbers to integers in the right order: their bits, inverted for negative
    numbers.
    """
    if not pa.types.is_floating(key.type):
        return key
    as_integer = pa.int64() if key.type == pa.float64() else pa.int32()
    magnitude = numeric_scalar(2 ** (as_integer.bit_width - 1) - 1, as_integer)
    one_nan = pc.if_else(pc.is_nan(key), numeric_scalar(float("nan"), key.type), key)
    bits = one_nan.view(as_integer)
    return pc.if_else(pc.less(bits, numeric_scalar(0, as_integer)), pc.bit_wise_xor(bits, magnitude), bits)
