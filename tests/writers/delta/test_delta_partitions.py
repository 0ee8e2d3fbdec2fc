"""Table partitions: what may be one, and that every value comes back from it."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.committers.contract import DataFile
from penstock.committers.errors import SchemaMismatchError
from penstock.writers.delta.partitions import check_partition_columns, directory, split

TIMES = [
    datetime(2024, 1, 1, 12, 30, 15, 123456),  # noqa: DTZ001 - read with and without a zone
    datetime(1, 1, 1),  # noqa: DTZ001
    datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
    datetime(1969, 12, 31, 23, 59, 59, 1),  # noqa: DTZ001
    None,
]
TEXTS = ["a b", "x/y", "a%20b", "%", "é€😀", "a=b", "a:b#?", "..", "'\"\\", "\x01\x7f", "a\nb", None, " "]
TEXTS += ["a+b", "a&b;,", "~", "null", "NULL", "z" * 250, "{}[]^|<>`!$()*"]

CASES = [
    pa.array(TEXTS),
    pa.array([date(2024, 1, 1), date(1, 1, 1), date(9999, 12, 31), None]),
    pa.array(TIMES, pa.timestamp("us", "UTC")),
    pa.array(TIMES, pa.timestamp("us")),
    pa.array([True, False, None]),
    pa.array([-128, 127, None], pa.int8()),
    pa.array([1, -1, 2**63 - 1, -(2**63), None]),
    pa.array([Decimal("1.50"), Decimal("-0.05"), Decimal("12345678.90"), None], pa.decimal128(10, 2)),
    pa.array([Decimal("1E-20"), Decimal("123456789012345678.1"), None], pa.decimal128(38, 20)),
]


@pytest.mark.parametrize("values", CASES, ids=lambda values: str(values.type))
def test_every_partition_value_comes_back(values: pa.Array, write_table: Any) -> None:
    """Read by polars, which takes some values from directories, and by DataFusion, which uses the log."""
    rows = pa.table({"id": pa.array(range(len(values))), "v": values})
    path = write_table([rows], partition_by=("v",))
    expected = rows.to_pylist()
    by_polars = pl.scan_delta(path).sort("id").select("id", "v").collect().to_dicts()
    by_datafusion = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT id, v FROM t ORDER BY id")
    assert by_polars == expected
    assert pa.table(by_datafusion.read_all()).to_pylist() == expected


def test_the_empty_string_is_null(write_files: Any) -> None:
    """As Spark does it; the Delta protocol spells both ''."""
    (file,) = write_files(pa.table({"id": [1, 2], "v": ["", None]}), partition_by=("v",))
    assert file.partition_values == (("v", None),)
    assert file.path.startswith("v=__HIVE_DEFAULT_PARTITION__/")
    assert file.rows == 2


def test_the_empty_string_in_a_required_column_is_refused(write_files: Any) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    with pytest.raises(SchemaMismatchError, match="Empty string in the partition column v"):
        write_files(pa.table({"id": [1], "v": [""]}), schema, partition_by=("v",))


@pytest.mark.parametrize(
    ("values", "part_of_message"),
    [
        (pa.array([2932897], pa.date32()), "years 1 to 9999"),
        (pa.array([-719163], pa.date32()), "years 1 to 9999"),
        (pa.array([253402300800 * 10**6], pa.timestamp("us", "UTC")), "years 1 to 9999"),
        (pa.array(["__HIVE_DEFAULT_PARTITION__"]), "interpret as NULL"),
        (pa.array(["é" * 127]), "255 bytes"),
    ],
)
def test_values_that_would_be_read_as_others_are_refused(
    values: pa.Array, part_of_message: str, write_files: Any
) -> None:
    with pytest.raises(
        SchemaMismatchError, match=f"'v' .*{part_of_message}.*batch 7, partition 0, attempt 12"
    ):
        write_files(pa.table({"id": [1], "v": values}), partition_by=("v",))


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.float32(), "DECIMAL"),
        (pa.float64(), "DECIMAL"),
        (pa.binary(), "hex"),
        (pa.struct([("x", pa.int64())]), "field"),
        (pa.list_(pa.int64()), "field"),
    ],
)
def test_types_that_do_not_survive_as_text_are_refused(kind: pa.DataType, remedy: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind)])
    with pytest.raises(SchemaMismatchError, match=f"'v' .*{remedy}"):
        check_partition_columns(schema, ["v"])


def test_all_partition_problems_are_named_at_once() -> None:
    schema = pa.schema([("x", pa.float64()), ("y", pa.binary())])
    with pytest.raises(SchemaMismatchError) as caught:
        check_partition_columns(schema, ["x", "y", "z"])
    for part_of_message in ("'x'", "'y'", "'z'", "At least one column"):
        assert part_of_message in str(caught.value)


def test_what_may_be_a_partition_column_is_let_through() -> None:
    schema = pa.schema([("id", pa.int64()), *((f"v{i}", values.type) for i, values in enumerate(CASES))])
    check_partition_columns(schema, schema.names[1:])
    check_partition_columns(schema, [])


def test_directories_are_escaped_as_spark_does_it() -> None:
    values = (("a b", "x/y=z"), ("c", None), ("d", "50%:é"))
    assert directory(values) == "a b=x%2Fy%3Dz/c=__HIVE_DEFAULT_PARTITION__/d=50%25%3Aé"


DAYS = st.dates() | st.none()
KEYS = st.tuples(st.sampled_from([None, "", "a", "b"]), st.integers(0, 3) | st.none(), DAYS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(KEYS, min_size=1, max_size=60))
def test_splitting_keeps_every_row_once_in_order_under_its_key(keys: list[tuple[Any, ...]]) -> None:
    columns = list(zip(*keys, strict=True))
    schema = pa.schema([("id", pa.int64()), ("s", pa.string()), ("i", pa.int32()), ("d", pa.date32())])
    table = pa.table([list(range(len(keys))), *map(list, columns)], schema=schema)
    expected: dict[tuple[str | None, ...], list[int]] = {}
    for row, (text, number, day) in enumerate(keys):
        key = (
            text or None,
            None if number is None else str(number),
            None if day is None else day.isoformat(),
        )
        expected.setdefault(key, []).append(row)
    parts = list(split(pa.concat_tables([table[:3], table[3:]]), ("s", "i", "d"), "here"))
    got = {tuple(value for _, value in part.values): part.rows["id"].to_pylist() for part in parts}
    assert len(got) == len(parts)
    assert got == expected


def test_timestamps_are_spelled_with_their_zone(write_files: Any) -> None:
    """Without the Z, readers take the time zone of their session."""
    instant = datetime(2024, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    rows = pa.table({"id": [1], "v": pa.array([instant], pa.timestamp("us", "UTC"))})
    files: tuple[DataFile, ...] = write_files(rows, partition_by=("v",))
    assert files[0].partition_values == (("v", "2024-07-01T10:00:00.000000Z"),)


def test_small_decimals_are_spelled_without_an_exponent(write_files: Any) -> None:
    """The Delta protocol asks for a plain number; some readers would take an exponent too."""
    rows = pa.table({"id": [1], "v": pa.array([Decimal("1E-20")], pa.decimal128(38, 20))})
    (file,) = write_files(rows, partition_by=("v",))
    assert file.partition_values == (("v", "0.00000000000000000001"),)
