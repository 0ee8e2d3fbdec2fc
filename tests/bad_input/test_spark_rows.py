"""Odd names and values through real Spark: batches, streams, and streams of rows as Spark 4.0 has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.datasource
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types
from tests.bad_input.budget import examples
from tests.bad_input.kinds import as_nullable, types
from tests.bad_input.names import NAMES, same_paths, unusable_names
from tests.bad_input.partitions import is_far
from tests.bad_input.refusals import columns_without_feature
from tests.bad_input.rows import ZONES, Rows, rows_of_schema
from tests.bad_input.tables import by_duckdb, new_table
from tests.bad_input.values import Hidden, rows_of, types_of
from tests.support.lakes import LAKES, LakeTable

from penstock.datasource.delta.source import DeltaDataSource
from penstock.datasource.iceberg.source import IcebergDataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("kind", LAKES)]


HAS_ARROW_STREAMS = hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter")
"""Spark 4.0 hands over rows."""


def write_batch(rows: DataFrame, table: LakeTable) -> None:
    rows.write.format(f"penstock.{table.kind}").mode("append").options(**table.options).save()


def write_stream(rows: DataFrame, table: LakeTable, checkpoint: Path, source: str = "penstock") -> None:
    stream = rows.writeStream.format(f"{source}.{table.kind}").trigger(availableNow=True)
    query = stream.options(checkpointLocation=str(checkpoint), **table.options).start()
    query.awaitTermination()


def register_row_writers(spark: SparkSession) -> None:
    """`rows.delta` and `rows.iceberg`: Spark is offered the writer that it takes on 4.0, whatever it is."""

    class Delta(DeltaDataSource):
        @classmethod
        def name(cls) -> str:
            return "rows.delta"

        def streamWriter(self, schema: spark_types.StructType, overwrite: bool) -> DataSourceStreamWriter:
            from penstock.datasource.planning import plan_stream_batch
            from penstock.datasource.row_stream_writer import RowStreamWriter

            sink = self.sink()
            return RowStreamWriter(
                sink, plan_stream_batch(sink, schema, overwrite) if self._plans else None, schema
            )

    class Iceberg(IcebergDataSource):
        @classmethod
        def name(cls) -> str:
            return "rows.iceberg"

        streamWriter = Delta.streamWriter

    spark.dataSource.register(Delta)
    spark.dataSource.register(Iceberg)


@contextmanager
def session_zone(spark: SparkSession, zone: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        assert before is not None
        spark.conf.set("spark.sql.session.timeZone", before)


# Rows ---------------------------------------------------------------------------------------------------


def takes_part(kind: spark_types.DataType) -> bool:
    """Rows in Python have maps as dicts: their keys must be hashable, and -0.0 and 0.0 are one."""
    if isinstance(kind, spark_types.MapType):
        return isinstance(
            kind.keyType, spark_types.StringType | spark_types.LongType | spark_types.DateType
        ) and takes_part(kind.valueType)
    if isinstance(kind, spark_types.ArrayType):
        return takes_part(kind.elementType)
    if isinstance(kind, spark_types.StructType):
        return all(takes_part(field.dataType) for field in kind.fields)
    return True


TYPES = types(3).filter(takes_part).map(as_nullable)
"""Neither pyarrow nor Spark makes sources in which NULL is around fields that are NOT NULL."""


@st.composite
def spark_rows(draw: st.DrawFn) -> Rows:
    """Of columns enough that few queries see much."""
    names = draw(st.lists(NAMES, min_size=4, max_size=10, unique_by=lambda name: name.lower()))
    schema = spark_types.StructType([spark_types.StructField(name, draw(TYPES)) for name in names])
    assume(not unusable_names(schema) and not same_paths(schema) and not columns_without_feature(schema))
    return draw(rows_of_schema(schema))


def source_rows(spark: SparkSession, rows: Rows, folder: Path) -> DataFrame:
    """A stream from a file that Spark has not written."""
    plain = Rows(rows.schema, rows.columns)
    pq.write_table(pa.Table.from_batches(plain.batches()), folder / "source.parquet")
    return spark.readStream.schema(rows.schema).parquet(str(folder))


def check_read(table: LakeTable, rows: Rows) -> None:
    read = by_duckdb(table)
    assert types_of(read.schema) == rows.types(table.kind)
    assert rows_of(read) == rows.seen()


@examples(3)
@given(rows=spark_rows(), zone=st.sampled_from(ZONES))
def test_batches_come_back_identically(kind: str, spark: SparkSession, rows: Rows, zone: str) -> None:
    plain = Rows(rows.schema, rows.columns)
    with new_table(kind) as table, session_zone(spark, zone):
        write_batch(spark.createDataFrame(pa.Table.from_batches(plain.batches()), rows.schema), table)
        check_read(table, rows)


@examples(2)
@given(rows=spark_rows(), zone=st.sampled_from(ZONES))
def test_streams_come_back_identically(
    kind: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: Rows, zone: str
) -> None:
    assume(HAS_ARROW_STREAMS or not has_far(rows.columns, [field.dataType for field in rows.schema.fields]))
    folder = tmp_path_factory.mktemp("stream")
    source = folder / "source"
    source.mkdir()
    with new_table(kind) as table, session_zone(spark, zone):
        write_stream(source_rows(spark, rows, source), table, folder / "checkpoint")
        check_read(table, rows)


@examples(2)
@given(rows=spark_rows(), zone=st.sampled_from(ZONES))
def test_streams_of_rows_come_back_identically(
    kind: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: Rows, zone: str
) -> None:
    """But for years that Python's dates do not know, at which Spark itself fails."""
    assume(not has_far(rows.columns, [field.dataType for field in rows.schema.fields]))
    register_row_writers(spark)
    folder = tmp_path_factory.mktemp("stream")
    source = folder / "source"
    source.mkdir()
    with new_table(kind) as table, session_zone(spark, zone):
        write_stream(source_rows(spark, rows, source), table, folder / "checkpoint", "rows")
        check_read(table, rows)


def has_far(columns: object, kinds: list[spark_types.DataType]) -> bool:
    """A moment outside of the years 1 to 9999, or within a day of their ends, wherever it is."""
    return any(_has_far(value, kind) for column, kind in zip(columns, kinds, strict=True) for value in column)  # type: ignore[call-overload]


def _has_far(value: object, kind: spark_types.DataType) -> bool:
    if value is None or isinstance(value, Hidden):
        return False
    if isinstance(kind, spark_types.StructType):
        return any(_has_far(part, field.dataType) for part, field in zip(value, kind.fields, strict=True))  # type: ignore[call-overload]
    if isinstance(kind, spark_types.ArrayType):
        return any(_has_far(part, kind.elementType) for part in value)  # type: ignore[attr-defined]
    if isinstance(kind, spark_types.MapType):
        pairs: tuple[tuple[object, object], ...] = value  # type: ignore[assignment]
        return any(_has_far(key, kind.keyType) or _has_far(item, kind.valueType) for key, item in pairs)
    day = (
        24 * 60 * 60 * 10**6
        if isinstance(kind, spark_types.TimestampType | spark_types.TimestampNTZType)
        else 1
    )
    return isinstance(value, int) and any(is_far(value + shift, kind) for shift in (-day, 0, day))


# Texts --------------------------------------------------------------------------------------------------


def test_bytes_that_spark_casts_to_a_text_are_refused_by_name(kind: str, spark: SparkSession) -> None:
    rows = spark.sql("SELECT 'ok' AS fine, array(CAST(X'ff41' AS STRING)) AS `broken one`")
    with new_table(kind) as table:
        with pytest.raises(Exception, match=r"A string in broken one\.element is not valid UTF-8"):
            write_batch(rows, table)
        assert table.data_files() == set()


def test_half_a_character_is_a_question_mark_before_any_sink_sees_it(kind: str, spark: SparkSession) -> None:
    """Java has texts with unpaired surrogates; Spark has none."""
    with new_table(kind) as table:
        write_batch(spark.sql(r"SELECT 'a\ud83db' AS s, hex('a\ud83db') AS h"), table)
        assert by_duckdb(table).to_pylist() == [{"s": "a?b", "h": "613F62"}]


# Names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("",), ("ok", "a\0b"), ("day", "DAY")], ids=repr)
def test_names_that_no_table_has_are_refused_by_name(
    kind: str, spark: SparkSession, names: tuple[str, ...]
) -> None:
    rows = spark.range(1).selectExpr(*["id"] * len(names)).toDF(*names)
    with new_table(kind) as table:
        with pytest.raises(Exception, match="SchemaMismatchError") as caught:
            write_batch(rows, table)
        assert {"": "``", "ok": r"a\x00b", "day": "day, DAY"}[names[0]] in str(caught.value)
        assert table.data_files() == set()
