"""Files of Iceberg tables, read back through the table: nothing is lost to bounds or partitions."""

from __future__ import annotations

import math
import operator
import uuid
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg import expressions
from pyiceberg import types as ice
from pyiceberg.expressions.literals import literal as literal_of
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema
from tests.support.iceberg_kinds import KINDS, Kind, column, is_nan, literal, same, to_iceberg
from tests.support.plans import with_ids
from tests.support.written_iceberg import IcebergTable, schema_of

from penstock.committers.contract import DataFile, PartitionField
from penstock.committers.errors import SchemaMismatchError

DAY = 24 * 60 * 60 * 10**6

OPERATORS = {
    expressions.EqualTo: operator.eq,
    expressions.LessThan: operator.lt,
    expressions.LessThanOrEqual: operator.le,
    expressions.GreaterThan: operator.gt,
    expressions.GreaterThanOrEqual: operator.ge,
}


def write(directory: Path, kind: Kind, transform: str, files: list[list[Any]]) -> tuple[IcebergTable, Any]:
    """A table with a file for each list at least; the values in each data file."""
    table = IcebergTable(directory, schema_of(v=kind.iceberg), [PartitionField("p", ("v",), transform)])
    found: list[tuple[DataFile, list[Any]]] = []
    for values in files:
        rows = pa.table({"v": column(kind, values)})
        for file in table.write(rows):
            frame = duckdb.sql(f"SELECT v FROM read_parquet('{table.path(file)}', hive_partitioning=false)")
            found.append((file, [row[0] for row in frame.fetchall()]))
    return table, found


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_readers_that_skip_files_find_every_value(kind: Kind, tmp_path_factory: Any) -> None:
    """Files of one or two rows, so that every bound is near a value."""

    @settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.lists(kind.values | st.none(), min_size=1, max_size=2), min_size=1, max_size=2),
        st.sampled_from((*kind.transforms, "void")),
    )
    def check(files: list[list[Any]], transform: str) -> None:
        table, found = write(tmp_path_factory.mktemp("table"), kind, transform, files)
        values = [value for values in files for value in values]
        assert table.by_duckdb("count(*)", "v IS NULL") == [(values.count(None),)]
        assert table.by_polars(pl.col("v").is_null()).height == values.count(None)
        for value in values:
            if value is None:
                continue
            rows = sum(same(value, other) for other in values)
            if not is_wrong_in_duckdb(kind, transform, value):
                assert table.by_duckdb("count(*)", f"v = {literal(kind, value)}") == [(rows,)], value
            plain = value.bytes if isinstance(value, uuid.UUID) else value
            assert table.by_polars(pl.col("v") == pl.lit(plain)).height == rows, value
            if (type(kind.iceberg), transform) != (
                ice.UUIDType,
                "identity",
            ):  # pyiceberg 0.12 compares with bytes
                check_plans(table, found, value)

    check()


def is_wrong_in_duckdb(kind: Kind, transform: str, value: Any) -> bool:
    """duckdb 1.5.5 skips partitions that have the row (buckets of UUIDs, months before 1970), fails
    (truncated decimals, if negative or wide), and skips row groups with NaN, in any Parquet file.
    """
    if is_nan(value):
        return True
    if isinstance(kind.iceberg, ice.UUIDType):
        return transform.startswith("bucket")
    if isinstance(kind.iceberg, ice.DecimalType):
        return transform.startswith("truncate")
    return transform in ("year", "month", "day", "hour") and to_iceberg(value) < 0


def check_plans(table: IcebergTable, found: list[tuple[DataFile, list[Any]]], value: Any) -> None:
    """pyiceberg's evaluators, operator by operator: every file with a row that fits is planned."""
    for predicate, compare in OPERATORS.items():
        wanted = {
            f"{table.location}/{file.path}"
            for file, values in found
            if any(other is not None and compare(other, value) for other in values)
        }
        is_beyond = isinstance(value, float) and math.isinf(value)  # which pyiceberg takes for a wide double
        if is_nan(value) or is_beyond or not wanted:
            continue
        row_filter = predicate("v", literal_of(to_iceberg(value)))
        planned = {task.file.file_path for task in table.table.scan(row_filter=row_filter).plan_files()}
        assert wanted <= planned, (predicate, value)


def test_a_file_with_nan_is_planned_for_what_is_greater(tmp_path: Path) -> None:
    """Spark holds NaN for the greatest number, and asks pyiceberg's or Java's evaluators like any other."""
    table = IcebergTable(tmp_path, schema_of(v=ice.DoubleType()))
    table.write(pa.table({"v": [1.0, float("nan")]}))
    table.write(pa.table({"v": [1.0]}))
    assert len(list(table.table.scan(row_filter="v > 5").plan_files())) == 1
    assert list(table.table.scan(row_filter="v < 0").plan_files()) == []


def test_bounds_let_readers_skip_files(tmp_path: Path) -> None:
    """Otherwise bounds would have no use."""
    table = IcebergTable(tmp_path, schema_of(i=ice.LongType(), s=ice.StringType(), d=ice.DecimalType(9, 2)))
    for number in (1, 2, 3):
        table.write(pa.table({"i": [number], "s": [f"{number}" * 30], "d": [Decimal(number)]}))
    for row_filter in ("i = 2", "s = '222222222222222222222222222222'", "d = 2.00", "i > 2", "s < '2'"):
        assert len(list(table.table.scan(row_filter=row_filter).plan_files())) == 1, row_filter


TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "l": pa.list_(pa.struct([("x", pa.int64()), ("y", pa.string())])),
    "m": pa.map_(pa.string(), pa.struct([("z", pa.list_(pa.int64()))])),
    "s": pa.struct([("at", pa.timestamp("us", "UTC")), ("d", pa.float64())]),
    "d9": pa.decimal128(9, 2),
    "d18": pa.decimal128(18, 3),
    "d38": pa.decimal128(38, 5),
    "u": pa.uuid(),
    "f": pa.binary(4),
    "b": pa.binary(),
    "t": pa.time64("us"),
}
TYPES_IN_SPARK = {
    "s": pa.struct([("at", pa.timestamp("us", "Europe/Berlin")), ("d", pa.float64())]),
    "u": pa.string(),
    "f": pa.binary(),
    "t": pa.time64("ns"),
}
AT = datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc)
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "l": [{"x": 1, "y": None}, None],
        "m": {"k": {"z": [1, None]}, "n": None, "o": {"z": None}, "p": {"z": []}},
        "s": {"at": AT, "d": 0.5},
        "d9": Decimal("-1.50"),
        "d18": Decimal("123456789012345.678"),
        "d38": Decimal("-123456789012345678901234567890123.45678"),
        "u": uuid.UUID(int=2**127 + 5),
        "f": b"\x00\x01\xfe\xff",
        "b": b"",
        "t": datetime.max.time(),
    },
    {"id": 2, "l": [], "m": {}, "s": {"at": None, "d": None}},
    {"id": 3, "l": None, "m": None, "s": None},
]
ROWS = [{name: row.get(name) for name in TYPES} for row in ROWS]


def rows_as_spark_has_them() -> pa.Table:
    columns = {}
    for name, kind in {**TYPES, **TYPES_IN_SPARK}.items():
        values = [row[name] for row in ROWS]
        if name == "u":
            values = [None if value is None else str(value) for value in values]
        if name == "m":
            values = [None if value is None else list(value.items()) for value in values]
        columns[name] = pa.array(values, kind)
    return pa.table(columns)


@pytest.mark.parametrize("batch_rows", [1, 1000])
def test_every_type_and_every_null_is_read_back_by_others(batch_rows: int, tmp_path: Path) -> None:
    """NULL lists, empty lists, NULL structs in lists and maps are distinguished."""
    partitioning = [
        PartitionField("hour", ("s", "at"), "hour"),
        PartitionField("dropped", ("b",), "void"),
        PartitionField("amount", ("d9",), "identity"),
        PartitionField("u_bucket", ("u",), "bucket[4]"),
    ]
    schema = pyarrow_to_schema(with_ids(pa.schema(list(TYPES.items()))))
    table = IcebergTable(tmp_path, schema, partitioning)
    table.write(rows_as_spark_has_them(), batch_rows=batch_rows)
    by_duckdb = [dict(zip(TYPES, row, strict=True)) for row in sorted(table.by_duckdb())]
    assert by_duckdb == ROWS
    by_polars = table.by_polars().sort("id").to_dicts()
    for row, expected in zip(by_polars, ROWS, strict=True):
        assert row == {**expected, "u": expected["u"] and expected["u"].bytes}


def test_partition_columns_through_structs_are_null_where_the_struct_is(tmp_path: Path) -> None:
    schema = Schema(ice.NestedField(1, "s", ice.StructType(ice.NestedField(2, "i", ice.LongType()))))
    table = IcebergTable(tmp_path, schema, [PartitionField("p", ("s", "i"), "truncate[10]")])
    hidden = pa.StructArray.from_arrays([pa.array([11, 12, 13])], ["i"], mask=pa.array([False, True, False]))
    files = table.write(pa.table({"s": hidden}))
    assert sorted((file.partition_values, file.rows) for file in files if file.rows == 2) == [
        ((("p", "10"),), 2)
    ]
    assert [file.rows for file in files if file.partition_values == (("p", None),)] == [1]
    assert table.by_duckdb("count(*)", "s IS NULL") == [(1,)]


def test_paths_are_found_for_all_values(tmp_path: Path) -> None:
    """Readers decode different characters of a path."""
    values = ["a b", "x/y", "a%20b", "é€😀", "a=b", "#?&;", "\x01", "+", "..", "", None, "z" * 5000, "null"]
    table = IcebergTable(
        tmp_path, schema_of(v=ice.StringType()), [PartitionField("p q%/", ("v",), "identity")]
    )
    table.write(pa.table({"v": values}))
    assert sorted(row[0] or "None" for row in table.by_duckdb()) == sorted(v or "None" for v in values)
    for value in values:
        if value is not None:
            assert table.by_polars(pl.col("v") == value)["v"].to_list() == [value]


@pytest.mark.parametrize("transform", ["identity", "day", "hour", "month", "year", "bucket[4]"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ice.DateType(), pa.array([-719162, 2932896], pa.date32())),
        (ice.TimestampType(), pa.array([-719162 * DAY, 2932897 * DAY - 1], pa.timestamp("us"))),
        (ice.TimestamptzType(), pa.array([-719162 * DAY, 2932897 * DAY - 1], pa.timestamp("us", "UTC"))),
    ],
    ids=str,
)
def test_the_years_1_to_9999_are_partitions_and_no_others(
    kind: ice.IcebergType, values: pa.Array, transform: str, tmp_path: Path
) -> None:
    """pyiceberg cannot commit a file whose partition it cannot show as a date."""
    if transform == "hour" and isinstance(kind, ice.DateType):
        return
    table = IcebergTable(tmp_path, schema_of(v=kind), [PartitionField("p", ("v",), transform)])
    table.write(pa.table({"v": values}))
    as_numbers = values.cast(pa.int32() if isinstance(kind, ice.DateType) else pa.int64()).to_pylist()
    for number in (as_numbers[0] - 1, as_numbers[1] + 1):
        rows = pa.table({"v": pa.array([number, None], values.type)})
        if transform in ("identity", "day", "hour"):
            with pytest.raises(SchemaMismatchError, match=r"'v', .*years 1 to 9999 \(batch 7"):
                table.write(rows)
        else:
            table.write(rows)
    expected = 2 if transform in ("identity", "day", "hour") else 6
    assert table.by_duckdb("count(*)") == [(expected,)]
