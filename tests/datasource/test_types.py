"""Spark's types, one by one: written losslessly or refused with a way out; docs/types.md says the same.

    PENSTOCK_UPDATE_DOCS=1 pytest tests/datasource/test_types.py

rewrites docs/types.md from what really happened.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.types as spark_types
import pytest
from deltalake import Schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    UserDefinedType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)
from tests.support.lakes import IcebergLake, iceberg_lake
from tests.support.query import Batches, Query

from penstock.committers.errors import SchemaMismatchError
from penstock.datasource.types import CHAR_VARCHAR_KEY, arrow_schema
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.write_config import FileNames, WriteConfig

DOCS = Path(__file__).resolve().parents[2] / "docs" / "types.md"

SESSION_ZONE = "Etc/UTC"


class PointType(UserDefinedType):
    @classmethod
    def sqlType(cls) -> DataType:
        return ArrayType(DoubleType(), False)


@dataclass(frozen=True)
class Written:
    """A type that is written, what Spark hands over for it, and how its bounds come to be."""

    type: DataType
    handed_over: pa.DataType
    values: list[Any]
    bounds: str
    """In a Delta table."""


X = StructType([StructField("x", LongType())])
NOON = datetime(2024, 1, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)

WRITTEN = [
    Written(BooleanType(), pa.bool_(), [True, False], "exact"),
    Written(ByteType(), pa.int8(), [-128, 127], "exact"),
    Written(ShortType(), pa.int16(), [-(2**15), 2**15 - 1], "exact"),
    Written(IntegerType(), pa.int32(), [-(2**31), 2**31 - 1], "exact"),
    Written(LongType(), pa.int64(), [-(2**63), 2**63 - 1], "exact"),
    Written(FloatType(), pa.float32(), [-0.5, 1.5], "exact; none with NaN or an infinite bound"),
    Written(DoubleType(), pa.float64(), [0.1, 1e300], "exact; none with NaN or an infinite bound"),
    Written(
        DecimalType(38, 10),
        pa.decimal128(38, 10),
        [Decimal("1.5"), Decimal("1234567890123456789.0123456789")],
        "exact up to 15 digits, else widened",
    ),
    Written(StringType(), pa.string(), ["a", "€😀"], "32 characters, the upper one rounded up"),
    Written(BinaryType(), pa.binary(), [b"\x00\xff", b""], "none"),
    Written(DateType(), pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], "exact"),
    Written(TimestampType(), pa.timestamp("us", SESSION_ZONE), [NOON], "widened to milliseconds"),
    Written(TimestampNTZType(), pa.timestamp("us"), [NOON.replace(tzinfo=None)], "widened to milliseconds"),
    Written(ArrayType(LongType()), pa.list_(pa.int64()), [[1, None], []], "none"),
    Written(ArrayType(X, False), pa.list_(pa.struct([("x", pa.int64())])), [[{"x": None}]], "none"),
    Written(MapType(StringType(), LongType()), pa.map_(pa.string(), pa.int64()), [[("k", None)], []], "none"),
    Written(X, pa.struct([("x", pa.int64())]), [{"x": 1}, {"x": None}], "by field"),
]


@dataclass(frozen=True)
class Refused:
    field: StructField
    remedy: str


def refused(kind: DataType, remedy: str, metadata: dict[str, Any] | None = None) -> Refused:
    return Refused(StructField("col", kind, metadata=metadata), remedy)


def newer(name: str, *arguments: Any) -> DataType | None:
    """A type that not every supported Spark has."""
    kind = getattr(spark_types, name, None)
    return None if kind is None else kind(*arguments)


CAST = "cast(col AS STRING)"
BY_CLASS: list[tuple[DataType | None, str]] = [
    (newer("TimeType"), CAST),
    (DayTimeIntervalType(), CAST),
    (YearMonthIntervalType(), CAST),
    (CalendarIntervalType(), CAST),
    (VariantType(), "to_json(col)"),
    (NullType(), CAST),
    (VarcharType(5), CAST),
    (StringType("UTF8_LCASE"), "collate(col, 'UTF8_BINARY')"),
    (newer("GeometryType", 4326), "st_asbinary(col)"),
    (newer("GeographyType", 4326), "st_asbinary(col)"),
    (PointType(), "to_json(struct(col))"),
    (StructType([]), "to_json(col)"),
]
REFUSED = [
    *(refused(kind, remedy) for kind, remedy in BY_CLASS if kind is not None),
    refused(StringType(), CAST, {CHAR_VARCHAR_KEY: "char(5)"}),
    refused(
        StructType([StructField("a", LongType()), StructField("A", LongType())]),
        "cast(col AS STRUCT<`a_1`: bigint, `A_2`: bigint>)",
    ),
]


def name_of(kind: DataType) -> str:
    return kind.simpleString()


# One by one -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: name_of(case.type))
def test_written_types_come_back_as_they_were(case: Written, tmp_path: Path) -> None:
    """With NULL; read by duckdb and polars."""
    rows, path = write(case, tmp_path)
    expected = pl.from_arrow(rows.cast(arrow_schema(spark_schema(case))))
    assert isinstance(expected, pl.DataFrame)
    assert pl.read_parquet(path).to_dicts() == expected.to_dicts()
    duckdb.sql("SET TimeZone = 'UTC'")
    by_duckdb = duckdb.sql(f"SELECT * FROM read_parquet('{path}')").to_arrow_table()
    assert by_duckdb.to_pylist() == rows.cast(by_duckdb.schema).to_pylist()


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: name_of(case.type))
def test_written_types_come_back_from_iceberg_as_they_were(case: Written, tmp_path: Path) -> None:
    """With NULL; the table read by duckdb, the file by polars."""
    rows, table = write_iceberg(case, tmp_path)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        by_duckdb = connection.execute(f"SELECT * FROM {table.relation(connection)}").to_arrow_table()
    assert by_duckdb.to_pylist() == rows.cast(by_duckdb.schema).to_pylist()
    (path,) = table.data_files()
    expected = pl.from_arrow(rows.cast(arrow_schema(spark_schema(case))))
    assert isinstance(expected, pl.DataFrame)
    assert pl.read_parquet(table.folder / path).to_dicts() == expected.to_dicts()


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: name_of(case.field.dataType))
def test_refused_types_come_with_a_way_out(case: Refused) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        arrow_schema(StructType([case.field]))
    assert "- col" in str(caught.value)
    assert case.remedy in str(caught.value)


def test_every_type_of_this_spark_is_written_or_refused_on_purpose() -> None:
    """A new Spark's new type fails here first."""
    known = {type(case.type).__name__ for case in WRITTEN} | {
        type(case.field.dataType).__name__ for case in REFUSED
    }
    abstract = {
        "AtomicType",
        "NumericType",
        "IntegralType",
        "FractionalType",
        "DatetimeType",
        "AnsiIntervalType",
    }
    abstract |= {"AnyTimeType", "SpatialType", "UserDefinedType", "DataType", "CharType", "StructField"}
    everything = {
        name
        for name, kind in vars(spark_types).items()
        if isinstance(kind, type) and issubclass(kind, DataType) and not name.startswith("_")
    }
    assert everything - known - abstract == set()


def test_nullability_is_kept_at_all_levels() -> None:
    inner = StructType([StructField("x", LongType(), False)])
    schema = StructType(
        [
            StructField("s", inner, False),
            StructField("l", ArrayType(inner, False)),
            StructField("m", MapType(StringType(), ArrayType(LongType(), True), False), False),
        ]
    )
    s, lists, maps = arrow_schema(schema)
    assert (s.nullable, s.type.field("x").nullable) == (False, False)
    assert (lists.nullable, lists.type.value_field.nullable) == (True, False)
    assert lists.type.value_type.field("x").nullable is False
    assert (maps.nullable, maps.type.item_field.nullable) == (False, False)
    assert maps.type.item_type.value_field.nullable is True


def test_all_offending_columns_are_named_with_their_full_path() -> None:
    schema = StructType(
        [
            StructField("ok", LongType()),
            StructField("a", StructType([StructField("b c", VariantType())])),
            StructField("l", ArrayType(StructType([StructField("v", NullType())]))),
            StructField("m", MapType(StringType(), ArrayType(DayTimeIntervalType()))),
            StructField("k", MapType(StringType("UTF8_LCASE"), LongType())),
        ]
    )
    with pytest.raises(SchemaMismatchError) as caught:
        arrow_schema(schema)
    message = str(caught.value)
    assert "ok" not in message
    for said in (
        "a.`b c` (variant). Write this instead: to_json(a.`b c`)",
        "l.element.v (void). Write this instead: transform(l, x -> cast(x.v AS STRING))",
        "m.value.element (interval day to second). Write this instead: "
        "transform_values(m, (k, v) -> transform(v, x -> cast(x AS STRING)))",
        "Write this instead: transform_keys(k, (k, v) -> collate(k, 'UTF8_BINARY'))",
    ):
        assert said in message


def test_columns_that_differ_only_in_case_are_refused() -> None:
    schema = StructType(
        [StructField("id", LongType()), StructField("v", LongType()), StructField("ID", LongType())]
    )
    with pytest.raises(SchemaMismatchError, match=r"id, ID .*df\.toDF\('id_1', 'v', 'ID_3'\)"):
        arrow_schema(schema)


def test_a_query_without_columns_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="at least one column"):
        arrow_schema(StructType([]))


# The page -------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not hasattr(spark_types, "GeometryType"), reason="needs Spark 4.1: the page has its types"
)
def test_the_page_on_types_is_what_really_happens(tmp_path: Path) -> None:
    page = make_page(tmp_path)
    if os.environ.get("PENSTOCK_UPDATE_DOCS"):
        DOCS.write_text(page)
    assert DOCS.read_text() == page, "docs/types.md is not up to date: run again with PENSTOCK_UPDATE_DOCS=1"


PAGE = """# Types

`tests/datasource/test_types.py` generates this page from tables that it writes and reads back. Do not edit it
by hand.

A column is written without loss, or refused before any row is written. NULLs are preserved, also inside
nested values. Columns of the table that the rows do not have are NULL.

## Written

| Spark | Arrow, data file | Parquet | Delta table | Iceberg table |
|---|---|---|---|---|
{written}

Iceberg has no 8-bit and 16-bit integers. Its data files store them with 32 bits.

## Bounds

Readers use bounds to skip files. The number of NULLs is stored for every column; of lists and maps only at
the top level.

| Spark | in a Delta table |
|---|---|
{bounds}

In an Iceberg table, bounds follow its column metrics (`write.metadata.metrics.*`). By default, the bounds of
strings and binaries are the first 16 characters or bytes, with the upper bound rounded up. Other types have
exact bounds. A column with a NaN has no upper bound, and lists and maps have no bounds inside.

If a column in a Delta file has values but no bound (NaN, an infinite bound, a year outside 1 to 9999), the
file has no bounds at all. Otherwise `to_pyarrow_dataset` of deltalake would treat the column as empty. If
you omit the column from the table property `delta.dataSkippingStatsColumns`, the other columns keep their
bounds.

The footers of data files have no statistics of `float` and `double`, at any level. Arrow ignores NaN in the
maximum. In Spark and DuckDB, NaN is greater than every number, so they would skip row groups with NaN. These
columns have no Bloom filters either, because a search for 0.0 would miss -0.0. The bounds in the table are
not affected, and readers still skip files. Inside a file, with a row group for every 250,000 rows, a filter
on these columns reads all row groups, even if the rows are sorted by the column.

## Refused

| Spark | write this instead |
|---|---|
{refused}

Names that differ only in case, empty names, and names with a NUL character are refused at every level. In
an Iceberg table, a name with dots must not be the path of another column (`a.b` and a struct `a` with a
field `b`). In a Delta table, `timestamp_ntz` inside a map is refused, unless another column is or has a
`timestamp_ntz` outside of maps. Only then does the Delta library enable the table feature for it.

A string that is not valid UTF-8, for example from `CAST(binary AS STRING)`, is refused while writing: use
`make_valid_utf8(col)`. PySpark 4.0 passes rows and replaces invalid bytes with U+FFFD before that. Spark
itself replaces an unpaired surrogate with `?`.

## Postgres tables

| Spark | new column | also fits |
|---|---|---|
| `boolean` | `boolean` | |
| `tinyint`, `smallint` | `smallint` | `integer`, `bigint`, `numeric` with enough digits |
| `int` | `integer` | `bigint`, `numeric` with enough digits |
| `bigint` | `bigint` | `numeric` with enough digits |
| `float` | `real` | `double precision` |
| `double` | `double precision` | |
| `decimal(p,s)` | `numeric(p,s)` | `numeric` with as many digits before and after the decimal point |
| `string` | `text` | `varchar`, `uuid`, `json`, `jsonb` |
| `binary` | `bytea` | |
| `date` | `date` | |
| `timestamp` | `timestamptz` | |
| `timestamp_ntz` | `timestamp` | |
| `array` of these | an array | like its elements |

NaN, infinities and -0.0 are preserved. Structs, maps, and arrays of arrays, structs or maps are refused: use
`to_json(col)`. NUL characters in strings, which Postgres does not support, and years outside 1 to 9999 are
refused while writing. `varchar(n)`, `char(n)` and timestamps with less precision than microseconds are
refused, because they would truncate values. A string that is not a valid `uuid` or JSON fails its task.
Columns of the table that the rows do not have get their default.

## HTTP endpoints

A row is a JSON object; its names are those of the columns, in their order.

| Spark | JSON | example |
|---|---|---|
| `boolean` | boolean | `true` |
| `tinyint`, `smallint`, `int`, `bigint` | number, with all digits | `9223372036854775807` |
| `float`, `double` | number; NaN and infinities are strings | `0.1`, `"NaN"`, `"-Infinity"` |
| `decimal(p,s)` | string, with all digits | `"-0.10"` |
| `string` | string | `"é"` |
| `binary` | string, base64 | `"AP8="` |
| `date` | string, ISO 8601 | `"0001-01-01"` |
| `timestamp` | string, ISO 8601 in UTC, with microseconds | `"2026-01-02T03:04:05.000006Z"` |
| `timestamp_ntz` | the same without a zone | `"2026-01-02T03:04:05.000006"` |
| `array` | array | `[1,null]` |
| `struct` | object | `{{"a":"0.50"}}` |
| `map` with keys of type `string` | object | `{{"k":null}}` |

NULL is `null`, at every level. Maps with other keys are refused at start: cast the keys to STRING. Refused
while
writing: a text that is no valid UTF-8, and years outside 1 to 9999.

## Partition columns of Delta tables

Boolean, integers, decimals, string, date and timestamps are accepted. Float, double, binary and nested types
are refused, because engines write NaN, -0.0 and bytes in different ways. The empty string becomes NULL, as in
Spark. Years outside 1 to 9999, the string `__HIVE_DEFAULT_PARTITION__`, and values with an escaped directory
name longer than 255 bytes are refused while writing. A column name that leaves no room for a value is
refused at start.

## Partitions of Iceberg tables

Every transform that Iceberg defines for a type is accepted, but no partition by `double`. Two decimals of the
same precision and scale, by value or truncated, are refused at start, because other Avro readers refuse the
manifests that pyiceberg would write. Years outside 1 to 9999 by value, day or hour are refused while writing.
So are decimals that do not fit their type once truncated: `truncate(10, col)` makes -100 of -99 in
`decimal(2,0)`.

## Filters of readers that miss rows

`tests/filters` runs filters on every type with Spark, DuckDB, polars and the libraries. It lists each filter
that finds other rows than a scan (`tests/filters/faults.py`). A query or table can avoid these:

- Spark 4.0 treats 0.0 and -0.0 as equal, but searches dictionaries of data files and partition values for
  the exact value. `col BETWEEN -0.0D AND 0.0D` finds both.
- If an Iceberg table is partitioned by a `float` column with NaN, `col > x` in Spark and DuckDB, and
  `col = 'NaN'` in DuckDB, miss the NaN.
- `to_pyarrow_dataset` of deltalake 1.6.6 cannot open a Delta table with a negative partition value such as
  -12.34.
"""


def make_page(path: Path) -> str:
    written = [written_row(case, path / str(number)) for number, case in enumerate(WRITTEN)]
    refusals = [f"| `{describe(case.field)}` | `` {case.remedy} `` |" for case in REFUSED]
    bounds = [f"| `{case.type.simpleString()}` | {case.bounds} |" for case in WRITTEN]
    return PAGE.format(written="\n".join(written), bounds="\n".join(bounds), refused="\n".join(refusals))


def describe(field: StructField) -> str:
    declared = field.metadata.get(CHAR_VARCHAR_KEY) if field.metadata else None
    if declared:
        return f"{declared}"
    if isinstance(field.dataType, PointType):
        return "user-defined type"
    return field.dataType.simpleString()


def written_row(case: Written, path: Path) -> str:
    _, file = write(case, path / "delta")
    _, table = write_iceberg(case, path / "iceberg")
    schema = arrow_schema(spark_schema(case))
    delta = json.loads(Schema.from_arrow(schema).to_json())["fields"][0]["type"]
    iceberg = table.metadata()["schemas"][0]["fields"][0]["type"]
    cells = [case.type.simpleString(), str(schema.field("v").type), parquet_type(file)]
    cells += [type_name(delta), type_name(iceberg)]
    return "| " + " | ".join([f"`{cell}`" for cell in cells]) + " |"


def parquet_type(file: Path) -> str:
    schema = pq.ParquetFile(file).schema
    if len(schema) > 1 or "." in schema.column(0).path:
        return "group"
    column = schema.column(0)
    logical = column.logical_type.type
    return str(column.physical_type) + (f" ({logical})" if logical not in ("NONE", "UNKNOWN") else "")


def type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def spark_schema(case: Written) -> StructType:
    return StructType([StructField("v", case.type)])


def write(case: Written, path: Path) -> tuple[pa.Table, Path]:
    """What Spark hands over, and the file that it becomes."""
    rows = pa.table({"v": pa.array([*case.values, None], case.handed_over)})
    plan = WriteConfig(str(path), {}, arrow_schema(spark_schema(case)), DeltaFormat())
    writer = DataFileWriter(plan, FileNames("query", "run", 0, 0, 0))
    writer.write(rows.to_batches()[0])
    (file,) = writer.finish()
    statistics = json.loads(file.statistics)
    has_bounds = "v" in statistics["minValues"]
    assert has_bounds == (case.bounds != "none")
    return rows, path / file.path


def write_iceberg(case: Written, path: Path) -> tuple[pa.Table, IcebergLake]:
    """What Spark hands over, and the table that it becomes."""
    rows = pa.table({"v": pa.array([*case.values, None], case.handed_over)})
    lake = iceberg_lake(path)
    options = {"store": f"sqlite:///{path}/store.db"}
    Batches(Query(lake, options=options)).run(rows, arrow_schema(spark_schema(case)))
    return rows, lake
