"""Each type of Spark is written without loss or refused with a remedy; docs/types.md shows the same.

    PENSTOCK_UPDATE_DOCS=1 pytest tests/datasource/test_types.py

updates the tables in docs/types.md.
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
from tests.support.plans import delta_plan
from tests.support.query import Batches, Query
from tests.writers.task import write_as_task

from penstock.committers.errors import SchemaMismatchError
from penstock.datasource.spark.types import CHAR_VARCHAR_KEY, arrow_schema

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

    @property
    def rows(self) -> pa.Table:
        """What Spark hands over, and NULL."""
        return pa.table({"v": pa.array([*self.values, None], self.handed_over)})

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(StructType([StructField("v", self.type)]))


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


def newer(name: str, *arguments: Any) -> DataType | None:
    """A type that not every supported Spark has."""
    kind = getattr(spark_types, name, None)
    return None if kind is None else kind(*arguments)


CAST = "cast(col AS STRING)"
INTERVALS: list[DataType] = [DayTimeIntervalType(), YearMonthIntervalType(), CalendarIntervalType()]
BY_CLASS: list[tuple[DataType | None, str]] = [
    *[(kind, CAST) for kind in (newer("TimeType"), *INTERVALS)],
    (VariantType(), "to_json(col)"),
    *[(kind, CAST) for kind in (NullType(), VarcharType(5))],
    (StringType("UTF8_LCASE"), "collate(col, 'UTF8_BINARY')"),
    *[(newer(name, 4326), "st_asbinary(col)") for name in ("GeometryType", "GeographyType")],
    (PointType(), "to_json(struct(col))"),
    (StructType([]), "to_json(col)"),
]
TWICE = StructType([StructField("a", LongType()), StructField("A", LongType())])
REFUSED = [
    *((StructField("col", kind), remedy) for kind, remedy in BY_CLASS if kind is not None),
    (StructField("col", StringType(), metadata={CHAR_VARCHAR_KEY: "char(5)"}), CAST),
    (StructField("col", TWICE), "cast(col AS STRUCT<`a_1`: bigint, `A_2`: bigint>)"),
]
"""With their remedies."""


# One by one -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case.type.simpleString())
def test_written_types_come_back_as_they_were(case: Written, tmp_path: Path) -> None:
    """With NULL; read by duckdb and polars."""
    rows, path = case.rows, write(case, tmp_path)
    expected = pl.from_arrow(rows.cast(case.schema))
    assert isinstance(expected, pl.DataFrame)
    assert pl.read_parquet(path).to_dicts() == expected.to_dicts()
    duckdb.sql("SET TimeZone = 'UTC'")
    by_duckdb = duckdb.sql(f"SELECT * FROM read_parquet('{path}')").to_arrow_table()
    assert by_duckdb.to_pylist() == rows.cast(by_duckdb.schema).to_pylist()


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case.type.simpleString())
def test_written_types_come_back_from_iceberg_as_they_were(case: Written, tmp_path: Path) -> None:
    """With NULL; the table read by duckdb, the file by polars."""
    rows, table = case.rows, write_iceberg(case, tmp_path)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        by_duckdb = connection.execute(f"SELECT * FROM {table.relation(connection)}").to_arrow_table()
    assert by_duckdb.to_pylist() == rows.cast(by_duckdb.schema).to_pylist()
    (path,) = table.data_files()
    expected = pl.from_arrow(rows.cast(case.schema))
    assert isinstance(expected, pl.DataFrame)
    assert pl.read_parquet(table.folder / path).to_dicts() == expected.to_dicts()


@pytest.mark.parametrize(
    ("field", "remedy"), REFUSED, ids=[field.dataType.simpleString() for field, _ in REFUSED]
)
def test_refused_types_come_with_a_remedy(field: StructField, remedy: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        arrow_schema(StructType([field]))
    assert "- col" in str(caught.value)
    assert remedy in str(caught.value)


def test_every_type_of_this_spark_is_written_or_refused_on_purpose() -> None:
    """A new Spark's new type fails here first."""
    known = {type(case.type).__name__ for case in WRITTEN} | {
        type(field.dataType).__name__ for field, _ in REFUSED
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
def test_the_tables_of_the_page_on_types_show_what_was_written_and_refused(tmp_path: Path) -> None:
    tables = {
        "| Spark | Arrow, data file | Parquet | Delta table | Iceberg table |": [
            written_row(case, tmp_path / str(number)) for number, case in enumerate(WRITTEN)
        ],
        "| Spark | in a Delta table |": [
            f"| `{case.type.simpleString()}` | {case.bounds} |" for case in WRITTEN
        ],
        "| Spark | write this instead |": [
            f"| `{describe(field)}` | `` {remedy} `` |" for field, remedy in REFUSED
        ],
    }
    page = DOCS.read_text()
    for header, rows in tables.items():
        before, found, after = page.partition(f"\n{header}\n")
        assert found, f"docs/types.md has no table {header}"
        rule, _, rest = after.partition("\n")
        page = before + found + "\n".join([rule, *rows, ""]) + "\n" + rest.partition("\n\n")[2]
    if os.environ.get("PENSTOCK_UPDATE_DOCS"):
        DOCS.write_text(page)
    assert DOCS.read_text() == page, "docs/types.md is not up to date: run again with PENSTOCK_UPDATE_DOCS=1"


def describe(field: StructField) -> str:
    if isinstance(field.dataType, PointType):
        return "user-defined type"
    return str(field.metadata.get(CHAR_VARCHAR_KEY, field.dataType.simpleString()))


def written_row(case: Written, path: Path) -> str:
    file, table = write(case, path / "delta"), write_iceberg(case, path / "iceberg")
    delta = json.loads(Schema.from_arrow(case.schema).to_json())["fields"][0]["type"]
    iceberg = table.metadata()["schemas"][0]["fields"][0]["type"]
    cells = [case.type.simpleString(), str(case.schema.field("v").type), parquet_type(file)]
    cells += [kind if isinstance(kind, str) else str(kind["type"]) for kind in (delta, iceberg)]
    return "| " + " | ".join([f"`{cell}`" for cell in cells]) + " |"


def parquet_type(file: Path) -> str:
    schema = pq.ParquetFile(file).schema
    if len(schema) > 1 or "." in schema.column(0).path:
        return "group"
    column = schema.column(0)
    logical = column.logical_type.type
    return str(column.physical_type) + (f" ({logical})" if logical not in ("NONE", "UNKNOWN") else "")


def write(case: Written, path: Path) -> Path:
    """Write a data file of a Delta table."""
    (file,) = write_as_task(delta_plan(path, case.schema), case.rows)
    has_bounds = "v" in json.loads(file.statistics)["minValues"]
    assert has_bounds == (case.bounds != "none")
    return path / file.path


def write_iceberg(case: Written, path: Path) -> IcebergLake:
    lake = iceberg_lake(path)
    options = {"store": f"sqlite:///{path}/store.db"}
    Batches(Query(lake, options=options)).run(case.rows, case.schema)
    return lake
