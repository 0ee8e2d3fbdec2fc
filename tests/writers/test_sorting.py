"""The order of rows within row groups: Iceberg's, for any table."""

from __future__ import annotations

import math
import struct
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.committers.contract import SortField
from penstock.writers.parquet.sorting import sort_problems, sort_rows

FLOATS = st.floats() | st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf])
ROWS = st.lists(
    st.tuples(st.integers(-12, 12) | st.none(), FLOATS | st.none(), st.sampled_from([None, "a", "b", "bb"])),
    max_size=30,
)
FIELDS = st.lists(
    st.builds(
        SortField,
        st.sampled_from([("i",), ("s", "f"), ("s", "t")]),
        st.just("identity"),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


def value_of(row: dict[str, Any], field: SortField) -> Any:
    return row["i"] if field.column == ("i",) else row["s"][field.column[1]]


def comparable(value: Any) -> Any:
    """-0.0 before 0.0, NaN after all others."""
    if not isinstance(value, float):
        return value
    return (math.isnan(value), 0.0, 0) if math.isnan(value) else (False, value, math.copysign(1, value))


def in_order(rows: list[dict[str, Any]], order: list[SortField]) -> list[dict[str, Any]]:
    """Sort by the last field first: Python's sort keeps the order of equal rows."""
    for field in reversed(order):
        pairs = [(value_of(row, field), row) for row in rows]
        nulls = [row for value, row in pairs if value is None]
        others = [(comparable(value), row) for value, row in pairs if value is not None]
        others.sort(key=itemgetter(0), reverse=field.is_descending)
        present = [row for _, row in others]
        rows = nulls + present if field.nulls_first else present + nulls
    return rows


def bits(rows: list[dict[str, Any]]) -> list[Any]:
    """Comparable although NaN is not equal to itself."""
    return [(row["id"], None if row["s"]["f"] is None else struct.pack("<d", row["s"]["f"])) for row in rows]


@settings(deadline=None)
@given(ROWS, FIELDS)
def test_rows_are_in_order_and_equal_ones_as_they_came(
    values: list[tuple[Any, ...]], order: list[SortField]
) -> None:
    rows = [{"id": i, "i": a, "s": {"f": b, "t": c}} for i, (a, b, c) in enumerate(values)]
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("i", pa.int32()),
            ("s", pa.struct([("f", pa.float64()), ("t", pa.string())])),
        ]
    )
    batches = [pa.RecordBatch.from_pylist([row], schema) for row in rows]
    table = pa.Table.from_batches(batches, schema)
    expected = in_order(table.to_pylist(), order)
    assert bits(sort_rows(table, order).to_pylist()) == bits(expected)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_numbers_sort_as_iceberg_has_it(kind: pa.DataType) -> None:
    values = [math.nan, math.inf, 1.5, 0.0, -0.0, -1.5, -math.inf]
    ascending = sort_rows(pa.table({"v": pa.array(values, kind)}), [SortField(("v",))])["v"].to_pylist()
    assert list(map(repr, ascending)) == ["-inf", "-1.5", "-0.0", "0.0", "1.5", "inf", "nan"]
    down = SortField(("v",), is_descending=True)
    descending = sort_rows(pa.table({"v": pa.array(values[::-1], kind)}), [down])["v"].to_pylist()
    assert list(map(repr, descending)) == list(map(repr, ascending[::-1]))


def test_transforms_sort_by_what_they_give() -> None:
    rows = pa.table({"v": [19, -1, 11, None, 10, 5]})
    truncated = SortField(("v",), "truncate[10]", nulls_first=True)
    assert sort_rows(rows, [truncated])["v"].to_pylist() == [None, -1, 5, 19, 11, 10]


def test_uuids_sort_by_their_bytes() -> None:
    storage = pa.array([b"\xff" * 16, b"\x00" * 16, None], pa.binary(16))
    rows = pa.table({"id": [1, 2, 3], "v": pa.ExtensionArray.from_storage(pa.uuid(), storage)})
    assert sort_rows(rows, [SortField(("v",))])["id"].to_pylist() == [2, 1, 3]


@pytest.mark.parametrize(
    ("sort", "part_of_message"),
    [
        (SortField(("nope",)), "'nope'"),
        (SortField(("s", "nope")), "'s.nope'"),
        (SortField(("i", "nope")), "'i.nope'"),
        (SortField(("s",)), "one of its fields"),
        (SortField(("i",), "day"), "Int32"),
    ],
)
def test_what_cannot_be_sorted_by_is_named(sort: SortField, part_of_message: str) -> None:
    schema = pa.schema([("i", pa.int32()), ("s", pa.struct([("x", pa.int64())]))])
    (problem,) = sort_problems(schema, [sort])
    assert part_of_message in problem
    assert list(sort_problems(schema, [SortField(("s", "x")), SortField(("i",), "bucket[2]")])) == []
