"""Statistics are never wrong: readers that skip files by them find every row."""

from __future__ import annotations

import json
import math
import struct
from datetime import date
from decimal import Context, Decimal
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.iceberg_kinds import is_nan

from penstock.writers.delta.statistics import leaves_with_statistics

UTC = pa.timestamp("us", "UTC")

MICROSECONDS = st.integers(-62135596800 * 10**6, 253402300800 * 10**6 - 1)
ODD_CHARACTERS = "ab\x00\x1f\x7f\u00e9\u2028\ud7ff\ue000\uffff\U00010000\U0001f600\U0010ffff\"\\'"
TEXTS = st.text(st.sampled_from(ODD_CHARACTERS), max_size=40) | st.text(max_size=3)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    unscaled = st.integers(0, precision).flatmap(lambda n: st.integers(-(10**n) + 1, 10**n - 1))
    return unscaled.map(lambda number: Decimal(number).scaleb(-scale, Context(prec=76)))


def floats(width: Literal[32, 64]) -> st.SearchStrategy[float]:
    return st.floats(width=width) | st.sampled_from([0.0, -0.0, 0.1, 1 / 3, math.inf, -math.inf, math.nan])


KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): floats(32),
    pa.float64(): floats(64),
    pa.date32(): st.dates(),
    pa.timestamp("us"): MICROSECONDS,
    UTC: MICROSECONDS,
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=3),
    pa.decimal128(10, 2): decimals(10, 2),
    pa.decimal128(18, 4): decimals(18, 4),
    pa.decimal128(38, 0): decimals(38, 0),
    pa.decimal128(38, 10): decimals(38, 10),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_readers_that_skip_files_find_every_value(kind: pa.DataType, write_table: Any) -> None:
    """Files of one or two rows, so that every bound is near a value. See tests/filters for other readers."""

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.lists(KINDS[kind] | st.none(), min_size=1, max_size=2), min_size=1, max_size=4))
    def check(files: list[list[Any]]) -> None:
        other = pa.array([1], pa.int64())
        tables = [
            pa.table({"v": pa.array(values, kind), "w": pa.concat_arrays([other] * len(values))})
            for values in files
        ]
        path = write_table(tables)
        column = pa.concat_tables(tables)["v"]
        wanted = [value for values in files for value in values if value is not None]
        assert_found(path, column, [value for value in wanted if not is_nan(value)])

    check()


def assert_found(path: str, column: pa.ChunkedArray, values: list[Any]) -> None:
    dataset = DeltaTable(path).to_pyarrow_dataset()
    frame = pl.scan_delta(path)
    with_nan = any(map(is_nan, column.to_pylist()))
    for value in values:
        scalar = pa.scalar(value, column.type)
        rows = pc.sum(pc.equal(column, scalar)).as_py()
        found = dataset.count_rows(filter=ds.field("v") == scalar)
        # pyarrow takes a NaN for the value of the Parquet file's own bounds where both are the same
        assert found == rows or (with_nan and found > rows), value
        same = pl.from_arrow(pa.array([value], column.type))
        assert frame.filter(pl.col("v") == pl.lit(same).first()).collect().height == rows, value
    missing = column.null_count
    assert dataset.count_rows(filter=ds.field("v").is_null()) == missing
    assert frame.filter(pl.col("v").is_null()).collect().height == missing


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(values=st.lists(floats(64) | st.none(), min_size=1, max_size=4))
def test_readers_find_values_in_structs(values: list[float | None], write_table: Any) -> None:
    inner = pa.array(values, pa.float64())
    rows = pa.table({"s": pa.StructArray.from_arrays([inner], ["x"]), "w": pa.array([1] * len(values))})
    path = write_table([rows])
    frame = pl.scan_delta(path)
    for value in values:
        if value is not None and not math.isnan(value):
            found = frame.filter(pl.col("s").struct.field("x") == value).collect().height
            assert found == pc.sum(pc.equal(inner, value)).as_py()


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(values=st.lists(TEXTS, min_size=1, max_size=4))
def test_string_bounds_hold_in_code_point_order(values: list[str], write_files: Any, tmp_path: Any) -> None:
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    statistics = statistics_of(write_files, pa.table({"v": values}))
    if "minValues" in statistics:
        assert statistics["minValues"]["v"] <= min(values)
        assert max(values) <= statistics["maxValues"]["v"]
        assert max(len(statistics[bound]["v"]) for bound in ("minValues", "maxValues")) <= 32


def statistics_of(write_files: Any, rows: pa.Table, **options: Any) -> dict[str, Any]:
    (file,) = write_files(rows, **options)
    return json.loads(file.statistics)


def bounds_of(write_files: Any, values: pa.Array) -> tuple[Any, Any]:
    statistics = statistics_of(write_files, pa.table({"v": values}))
    bounds = (statistics.get(bound, {}).get("v") for bound in ("minValues", "maxValues"))
    return next(bounds), next(bounds)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([3, None, -1], pa.int16()), (-1, 3)),
        (pa.array([True, None]), (True, True)),
        (pa.array([None, None], pa.int64()), (None, None)),
        *[(pa.array(values), (None, None)) for values in ([b"a"], [1.0, math.nan], [1.0, math.inf])],
        (pa.array([0.1], pa.float32()), (struct.unpack("f", struct.pack("f", 0.1))[0],) * 2),
        (pa.array([-1, 1001], pa.timestamp("us")), ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00.002")),
        (pa.array([0, 1000], UTC), ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.001Z")),
        (
            pa.array([253402300800 * 10**6 - 1], pa.timestamp("us")),
            ("9999-12-31T23:59:59.999", "9999-12-31T23:59:59.999999"),
        ),
        (pa.array([date.min, date.max]), ("0001-01-01", "9999-12-31")),
        (pa.array([2932897], pa.date32()), (None, None)),
        (pa.array(["a" * 40]), ("a" * 32, "a" * 31 + "b")),
        (pa.array(["a" * 31 + "\U0010ffff" * 9]), ("a" * 31 + "\U0010ffff", "a" * 30 + "b")),
        (pa.array(["a" * 31 + "\ud7ffz"]), ("a" * 31 + "\ud7ff", "a" * 31 + "\ue000")),
        (pa.array(["a" * 5000, "b"]), ("a" * 32, "b")),
        (pa.array(["\U0010ffff" * 40]), (None, None)),
        (pa.array([Decimal("99999999999999999")], pa.decimal128(17, 0)), (99999999999999800, None)),
    ],
)
def test_bounds(values: pa.Array, expected: tuple[Any, Any], write_files: Any) -> None:
    if None in expected:
        expected = (None, None)
    assert bounds_of(write_files, values) == expected


@pytest.mark.parametrize("long", ["a" * 5000, "d" * 5000])
def test_text_bounds_hold_where_the_footer_has_none(long: str, write_files: Any) -> None:
    """Of a row group with a long text it tells nothing, of the others all."""
    rows = pa.table({"v": ["b", "c", long, "bb", "a\u00e9", None]})
    statistics = statistics_of(write_files, rows, row_group_rows=2)
    bounds = [statistics[bound]["v"] for bound in ("minValues", "maxValues")]
    texts = [text[:32] for text in ("a\u00e9", "c", long)]
    assert bounds[0] == min(texts)
    assert bounds[1][:31] == max(texts)[:31]
    assert bounds[1] >= long[:32]


def test_wide_decimals_are_widened_beyond_what_a_double_loses(write_files: Any) -> None:
    value = Decimal("1234567890123456789.0123456789")
    (file,) = write_files(pa.table({"v": pa.array([value, -value], pa.decimal128(38, 10))}))
    statistics = json.loads(file.statistics, parse_float=Decimal)
    assert statistics["minValues"]["v"] == -1234567890123470000
    assert statistics["maxValues"]["v"] == 1234567890123470000


def test_decimals_of_15_digits_are_exact_to_the_digit(write_files: Any) -> None:
    (file,) = write_files(
        pa.table({"v": pa.array([Decimal("-0.00000012"), Decimal("0.5")], pa.decimal128(18, 8))})
    )
    assert '"minValues":{"v":-0.00000012},"maxValues":{"v":0.50000000}' in file.statistics


def test_null_counts_of_nested_columns(write_files: Any) -> None:
    """Under a NULL struct every field is NULL; lists and maps are counted at the top only."""
    struct_type = pa.struct(
        [("x", pa.int64()), ("l", pa.list_(pa.int64())), ("t", pa.struct([("y", pa.string())]))]
    )
    rows = pa.table(
        {
            "l": pa.array([None, [None], [1]]),
            "s": pa.array(
                [None, {"x": 1, "l": None, "t": None}, {"x": None, "l": [None], "t": {"y": "a"}}], struct_type
            ),
        }
    )
    statistics = statistics_of(write_files, rows)
    assert statistics["nullCount"] == {"l": 1, "s": {"x": 2, "l": 2, "t": {"y": 2}}}
    assert statistics["minValues"] == {"s": {"x": 1, "t": {"y": "a"}}}
    assert statistics["numRecords"] == 3


def test_null_counts_and_bounds_cover_all_row_groups(write_files: Any) -> None:
    rows = pa.table({"v": [5, None, 1, None, None, 9], "f": [1.0, 2.0, 3.0, math.nan, 1.0, 1.0]})
    statistics = statistics_of(write_files, rows.select(["v"]), row_group_rows=2)
    assert statistics == {
        "numRecords": 6,
        "minValues": {"v": 1},
        "maxValues": {"v": 9},
        "nullCount": {"v": 3},
    }


def test_a_column_without_bounds_takes_them_from_the_whole_file(write_files: Any) -> None:
    """The Delta library's dataset reads "no bound" as "no values" if other columns have bounds."""
    rows = pa.table({"v": [math.nan], "w": [1]})
    assert statistics_of(write_files, rows) == {"numRecords": 1, "nullCount": {"v": 0, "w": 0}}


def test_a_column_left_out_of_the_statistics_leaves_the_others_theirs(write_files: Any) -> None:
    rows = pa.table({"v": [math.nan], "w": [1]})
    statistics = statistics_of(write_files, rows, statistics_columns=("w",))
    assert statistics == {
        "numRecords": 1,
        "minValues": {"w": 1},
        "maxValues": {"w": 1},
        "nullCount": {"w": 0},
    }


def paths(schema: pa.Schema, columns: tuple[str, ...] | None, columns_max: int) -> list[str]:
    leaves = leaves_with_statistics(schema, ["p"], columns, columns_max)
    return [".".join(leaf.path) for leaf in leaves]


def test_which_columns_have_statistics() -> None:
    inner = pa.struct([("x", pa.int64()), ("y", pa.int64()), ("z", pa.int64())])
    listed = pa.list_(pa.struct([("u", pa.int64()), ("v", pa.int64())]))
    schema = pa.schema([("p", pa.int64()), ("s", inner), ("l", listed), ("a", pa.int64()), ("b", pa.int64())])
    assert paths(schema, None, -1) == ["s.x", "s.y", "s.z", "l", "a", "b"]
    assert paths(schema, None, 2) == ["s.x", "s.y"]
    assert paths(schema, None, 4) == ["s.x", "s.y", "s.z", "l", "a"]
    assert paths(schema, None, 0) == []
    assert paths(schema, ("S.y", "b"), 0) == ["s.y", "b"]
    assert paths(schema, ("s",), 0) == ["s.x", "s.y", "s.z"]


def test_columns_after_nested_ones_get_their_own_bounds(write_files: Any) -> None:
    """Lists, maps and structs take several Parquet columns, or none of the name's."""
    rows = pa.table(
        {
            "m": pa.array(
                [[("k", {"x": 7, "y": 8})]],
                pa.map_(pa.string(), pa.struct([("x", pa.int64()), ("y", pa.int64())])),
            ),
            "l": pa.array([[[{"x": 5}]]]),
            "s": pa.array([{"x": 3, "l": [4]}]),
            "v": [1],
        }
    )
    statistics = statistics_of(write_files, rows)
    assert statistics["minValues"] == {"s": {"x": 3}, "v": 1}
