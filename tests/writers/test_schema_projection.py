"""Rows brought into the table's schema, or refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.committers.errors import SchemaMismatchError
from penstock.writers.parquet.schema_projection import SchemaProjector

UTC = pa.timestamp("us", "UTC")


def conform(rows: pa.Table, target: pa.Schema) -> pa.Table:
    conformer = SchemaProjector(target, "batch 7, partition 3, attempt 12")
    return pa.Table.from_batches([conformer(batch) for batch in rows.to_batches()], target)


def one(value: Any, source: pa.DataType, target: pa.DataType) -> Any:
    table = conform(pa.table({"v": pa.array([value, None], source)}), pa.schema([("v", target)]))
    assert table["v"][1].as_py() is None
    return table["v"][0].as_py()


def test_columns_go_by_name_into_table_order() -> None:
    target = pa.schema([("a", pa.int64()), ("b", pa.string())])
    rows = conform(pa.table({"b": ["x"], "a": [1]}), target)
    assert rows.schema == target
    assert rows.to_pylist() == [{"a": 1, "b": "x"}]


def test_names_may_differ_in_case() -> None:
    assert conform(pa.table({"ID": [1]}), pa.schema([("id", pa.int64())])).to_pylist() == [{"id": 1}]


def test_an_exact_name_goes_before_one_that_differs_in_case() -> None:
    target = pa.schema([("A", pa.int64()), ("a", pa.int64())])
    assert conform(pa.table({"a": [1], "A": [2]}), target).to_pylist() == [{"A": 2, "a": 1}]


def test_one_column_never_fills_two() -> None:
    target = pa.schema([("A", pa.int64()), ("a", pa.int64())])
    assert conform(pa.table({"a": [1]}), target).to_pylist() == [{"A": None, "a": 1}]


def test_ambiguous_names_are_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"ambiguous \('AB', 'aB'\)"):
        conform(pa.table({"AB": [1], "aB": [2]}), pa.schema([("ab", pa.int64())]))


def test_missing_nullable_columns_are_null_at_every_level() -> None:
    struct = pa.struct([("x", pa.int64()), ("y", pa.string())])
    target = pa.schema(
        [("s", struct), ("l", pa.list_(struct)), ("m", pa.map_(pa.string(), struct)), ("n", struct)]
    )
    part = pa.struct([("x", pa.int32())])
    rows = pa.table(
        {
            "s": pa.array([{"x": 1}, None, {"x": None}], part),
            "l": pa.array([[{"x": 1}, None], None, []], pa.list_(part)),
            "m": pa.array([[("k", {"x": 1})], [("k", None)], None], pa.map_(pa.string(), part)),
        }
    )
    assert conform(rows, target).to_pylist() == [
        {
            "s": {"x": 1, "y": None},
            "l": [{"x": 1, "y": None}, None],
            "m": [("k", {"x": 1, "y": None})],
            "n": None,
        },
        {"s": None, "l": None, "m": [("k", None)], "n": None},
        {"s": {"x": None, "y": None}, "l": [], "m": None, "n": None},
    ]


@given(st.integers(0, 5), st.integers(0, 6))
def test_slices_of_nested_columns_keep_their_rows(start: int, length: int) -> None:
    """Rebuilding nested arrays must respect offsets."""
    values = [[{"x": 1}], None, [], [None, {"x": 2}], [{"x": None}], [{"x": 3}, {"x": 4}]]
    narrow, wide = (pa.list_(pa.struct([("x", kind)])) for kind in (pa.int8(), pa.int64()))
    pairs = [None if value is None else [("k", item) for item in value] for value in values]
    rows = pa.table(
        {
            "l": pa.array(values, narrow),
            "m": pa.array(pairs, pa.map_(pa.string(), narrow.value_type)),
            "s": pa.array([{"l": value} for value in values[:-1]] + [None], pa.struct([("l", narrow)])),
        }
    ).slice(start, length)
    target = pa.schema(
        [("l", wide), ("m", pa.map_(pa.string(), wide.value_type)), ("s", pa.struct([("l", wide)]))]
    )
    result = conform(rows, target)
    result.validate(full=True)
    assert result.to_pylist() == rows.to_pylist()


def test_time_zones_become_utc_and_the_instant_stays() -> None:
    rows = pa.table({"t": pa.array([1_700_000_000_000_001], pa.timestamp("us", "America/New_York"))})
    result = conform(rows, pa.schema([("t", UTC)]))
    assert result["t"].cast(pa.int64()).to_pylist() == [1_700_000_000_000_001]


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        (-128, pa.int8(), pa.int16()),
        (2**31 - 1, pa.int32(), pa.int64()),
        (2**31 - 1, pa.int32(), pa.float64()),
        (2**15 - 1, pa.int16(), pa.float32()),
        (0.5, pa.float32(), pa.float64()),
        (2**63 - 1, pa.int64(), pa.decimal128(19, 0)),
        (Decimal("1.5"), pa.decimal128(3, 1), pa.decimal128(5, 3)),
        ("x", pa.large_string(), pa.string()),
        ("x", pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (b"x", pa.large_binary(), pa.binary()),
        ([1], pa.large_list(pa.int32()), pa.list_(pa.int64())),
        (None, pa.null(), pa.struct([("x", pa.int64())])),
        (time(23, 59, 59, 999999), pa.time64("ns"), pa.time64("us")),
        (b"abc", pa.binary(), pa.binary(3)),
        (b"abc", pa.binary(3), pa.binary()),
        (b"abc", pa.large_binary(), pa.binary(3)),
    ],
)
def test_widening_keeps_the_value(value: Any, source: pa.DataType, target: pa.DataType) -> None:
    assert one(value, source, target) == value


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        (1, pa.int64(), pa.int32()),
        (1, pa.int64(), pa.float64()),
        (1, pa.int32(), pa.float32()),
        (1.0, pa.float64(), pa.float32()),
        (1.0, pa.float64(), pa.int64()),
        (1, pa.int64(), pa.decimal128(18, 0)),
        (Decimal("1.5"), pa.decimal128(3, 1), pa.decimal128(3, 2)),
        (Decimal("1.5"), pa.decimal128(3, 1), pa.decimal128(5, 0)),
        ("1", pa.string(), pa.int64()),
        (1, pa.int64(), pa.string()),
        ("1", pa.string(), pa.binary()),
        (b"1", pa.binary(), pa.string()),
        (0, pa.timestamp("us"), UTC),
        (0, UTC, pa.timestamp("us")),
        (0, pa.timestamp("ns", "UTC"), UTC),
        (0, pa.date32(), pa.timestamp("us")),
        (True, pa.bool_(), pa.int8()),
        ([1], pa.list_(pa.int64()), pa.list_(pa.int32())),
        ([1], pa.list_(pa.int64()), pa.int64()),
    ],
)
def test_what_could_change_a_value_is_refused(value: Any, source: pa.DataType, target: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match="v"):
        one(value, source, target)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(str(UUID(int=5)), pa.string()), (UUID(int=5).bytes, pa.binary()), (UUID(int=5).bytes, pa.binary(16))],
)
def test_texts_and_bytes_become_uuids(value: Any, kind: pa.DataType) -> None:
    """Spark has no type of its own for them."""
    assert one(value, kind, pa.uuid()) == UUID(int=5)
    inside = pa.list_(pa.struct([("u", kind)]))
    result = one([{"u": value}, None], inside, pa.list_(pa.struct([("u", pa.uuid())])))
    assert result == [{"u": UUID(int=5)}, None]


def test_what_lies_below_a_null_need_not_fit() -> None:
    hidden = pa.StructArray.from_arrays([pa.array([b"abc", b""])], ["f"], mask=pa.array([False, True]))
    target = pa.schema([("s", pa.struct([("f", pa.binary(3))]))])
    assert conform(pa.table({"s": hidden}), target).to_pylist() == [{"s": {"f": b"abc"}}, {"s": None}]


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        (b"ab", pa.binary(), pa.binary(3)),
        (b"ab", pa.binary(2), pa.binary(3)),
        ("no uuid", pa.string(), pa.uuid()),
        (b"ab", pa.binary(), pa.uuid()),
    ],
)
def test_what_has_another_length_is_refused(value: Any, source: pa.DataType, target: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match="cannot be written as"):
        one(value, source, target)


def test_a_time_with_nanoseconds_is_refused() -> None:
    rows = pa.table({"v": pa.array([1001], pa.int64()).cast(pa.time64("ns"))})
    with pytest.raises(SchemaMismatchError, match="would lose data"):
        conform(rows, pa.schema([("v", pa.time64("us"))]))


def test_a_timestamp_out_of_range_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="timestamp"):
        one(2**62, pa.timestamp("s", "UTC"), UTC)


def test_all_misfits_are_named_at_once_with_both_schemas() -> None:
    target = pa.schema(
        [
            pa.field("must", pa.int64(), nullable=False),
            ("n", pa.int32()),
            ("s", pa.struct([("x", pa.int32())])),
        ]
    )
    rows = pa.table({"n": ["x"], "extra": [1], "s": [{"x": 1, "y": 2}]})
    with pytest.raises(SchemaMismatchError) as caught:
        conform(rows, target)
    message = str(caught.value)
    for part_of_message in (
        "'must': the table declares it NOT NULL",
        "'n': string does not",
        "'extra': the table does not have it",
        "'s.y': the table does not have it",
    ):
        assert part_of_message in message
    assert "The rows have:\n    n: string" in message
    assert "The table has:\n    must: int64 NOT NULL" in message


def required(kind: pa.DataType, wrap: Callable[[pa.Field], pa.DataType] | None = None) -> pa.Schema:
    field = pa.field("v" if wrap is None else "x", kind, nullable=False)
    return pa.schema([field if wrap is None else pa.field("v", wrap(field))])


X, MAP = pa.struct([("x", pa.int64())]), pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("value", "source", "target", "path"),
    [
        (None, pa.int64(), required(pa.int64()), "v"),
        ({"x": None}, X, required(pa.int64(), lambda f: pa.struct([f])), "v.x"),
        ([1, None], pa.list_(pa.int64()), required(pa.int64(), pa.list_), "v.element"),
        ([("k", None)], MAP, required(pa.int64(), lambda f: pa.map_(pa.string(), f)), "v.value"),
        ([{"x": None}], pa.list_(X), required(pa.int64(), lambda f: pa.list_(pa.struct([f]))), "v.element.x"),
    ],
)
def test_null_in_a_required_column_is_refused(
    value: Any, source: pa.DataType, target: pa.Schema, path: str
) -> None:
    rows = pa.table({"v": pa.array([value], source)})
    with pytest.raises(SchemaMismatchError, match=rf"NULL in {path}, .*batch 7, partition 3, attempt 12"):
        conform(rows, target)


def test_a_null_struct_misses_no_required_field() -> None:
    target = required(pa.int64(), lambda field: pa.struct([field]))
    rows = pa.table({"v": pa.array([None, {"x": 1}], pa.struct([("x", pa.int64())]))})
    assert conform(rows, target).to_pylist() == [{"v": None}, {"v": {"x": 1}}]


def test_required_fields_in_rows_outside_a_slice_do_not_matter() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    rows = pa.table({"v": pa.array([[("k", None)], [("k", 1)]], kind)}).slice(1)
    target = required(pa.int64(), lambda field: pa.map_(pa.string(), field))
    assert conform(rows, target).to_pylist() == [{"v": [("k", 1)]}]


def texts(values: list[bytes | None]) -> pa.Array:
    """Bytes as a column of texts, as Spark's CAST makes them; nobody has looked at them."""
    array = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count)


@pytest.mark.parametrize("values", [[b"a", b"\xff"], [b"\xc3", b"\xa9"], [b"\x80", None]], ids=repr)
def test_bytes_that_are_no_text_are_refused(values: list[bytes | None]) -> None:
    """Two of them may be one together, and yet none is."""
    with pytest.raises(SchemaMismatchError, match="is not valid UTF-8"):
        conform(pa.table({"v": texts(values)}), pa.schema([("v", pa.string())]))


@given(st.lists(st.none() | st.text(max_size=5), max_size=30), st.integers(0, 29), st.integers(0, 30))
def test_only_the_rows_that_are_written_must_be_texts(
    values: list[str | None], first: int, count: int
) -> None:
    """Columns may be slices of longer ones."""
    around: list[bytes | None] = [b"\xff"]
    whole = texts(around + [None if text is None else text.encode() for text in values] + around)
    column = whole.slice(1, len(values)).slice(first, count)
    written = conform(pa.table({"v": column}), pa.schema([("v", pa.string())]))
    assert written["v"].to_pylist() == values[first : first + count]
