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
from tests.bad_input.kinds import is_far, leaves, types, walk, with_nulls
from tests.bad_input.names import same_paths, unusable_names
from tests.bad_input.rows import ZONES, Rows, rows_of_schema
from tests.bad_input.tables import by_duckdb, check_read, columns_without_feature, examples, new_table
from tests.bad_input.texts import NAMES
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
        format = "rows.delta"

        def streamWriter(self, schema: spark_types.StructType, overwrite: bool) -> DataSourceStreamWriter:
            from penstock.datasource.planning.plan import plan_stream_batch
            from penstock.datasource.spark.row_stream_writer import RowStreamWriter

            query = self.query()
            return RowStreamWriter(
                query, plan_stream_batch(query, schema, overwrite) if self._plans else None, schema
            )

    class Iceberg(IcebergDataSource):
        format = "rows.iceberg"
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


def is_supported(kind: spark_types.DataType) -> bool:
    """Rows in Python have maps as dicts: their keys must be hashable, and -0.0 and 0.0 are one."""
    keys = (spark_types.StringType, spark_types.LongType, spark_types.DateType)
    maps = [part for part in walk(kind) if isinstance(part, spark_types.MapType)]
    return all(isinstance(part.keyType, keys) for part in maps)


TYPES = types(3).filter(is_supported).map(lambda kind: with_nulls(kind, allowed=True))
"""Neither pyarrow nor Spark makes sources in which NULL is around fields that are NOT NULL."""


@st.composite
def spark_rows(draw: st.DrawFn) -> Rows:
    """Rows of many columns, so that few queries test many types."""
    names = draw(st.lists(NAMES, min_size=4, max_size=10, unique_by=lambda name: name.lower()))
    schema = spark_types.StructType([spark_types.StructField(name, draw(TYPES)) for name in names])
    assume(not unusable_names(schema) and not same_paths(schema) and not columns_without_feature(schema))
    return draw(rows_of_schema(schema))


def source_rows(spark: SparkSession, rows: Rows, folder: Path) -> DataFrame:
    """A stream from a file that Spark has not written."""
    plain = Rows(rows.schema, rows.columns)
    pq.write_table(pa.Table.from_batches(plain.batches()), folder / "source.parquet")
    return spark.readStream.schema(rows.schema).parquet(str(folder))


@examples(3)
@given(rows=spark_rows(), zone=st.sampled_from(ZONES))
def test_batches_are_read_back(kind: str, spark: SparkSession, rows: Rows, zone: str) -> None:
    plain = Rows(rows.schema, rows.columns)
    with new_table(kind) as table, session_zone(spark, zone):
        write_batch(spark.createDataFrame(pa.Table.from_batches(plain.batches()), rows.schema), table)
        check_read(table, rows)


@examples(2)
@given(rows=spark_rows(), zone=st.sampled_from(ZONES))
def test_streams_are_read_back(
    kind: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: Rows, zone: str
) -> None:
    assume(HAS_ARROW_STREAMS or not has_far(rows))
    folder = tmp_path_factory.mktemp("stream")
    source = folder / "source"
    source.mkdir()
    with new_table(kind) as table, session_zone(spark, zone):
        write_stream(source_rows(spark, rows, source), table, folder / "checkpoint")
        check_read(table, rows)


@examples(2)
@given(rows=spark_rows(), zone=st.sampled_from(ZONES))
def test_streams_of_rows_are_read_back(
    kind: str, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: Rows, zone: str
) -> None:
    """But for years that Python's dates do not know, at which Spark itself fails."""
    assume(not has_far(rows))
    register_row_writers(spark)
    folder = tmp_path_factory.mktemp("stream")
    source = folder / "source"
    source.mkdir()
    with new_table(kind) as table, session_zone(spark, zone):
        write_stream(source_rows(spark, rows, source), table, folder / "checkpoint", "rows")
        check_read(table, rows)


def has_far(rows: Rows) -> bool:
    """Return True if a moment is outside of the years 1 to 9999, or within a day of their ends."""
    return any(
        is_far(*leaf, margin_days=1)
        for column, field in zip(rows.columns, rows.schema.fields, strict=True)
        for value in column
        for leaf in leaves(value, field.dataType)
    )


# Texts --------------------------------------------------------------------------------------------------


def test_bytes_that_spark_casts_to_a_string_are_refused_by_name(kind: str, spark: SparkSession) -> None:
    rows = spark.sql("SELECT 'ok' AS fine, array(CAST(X'ff41' AS STRING)) AS `broken one`")
    with new_table(kind) as table:
        with pytest.raises(Exception, match=r"A string in broken one\.element is not valid UTF-8"):
            write_batch(rows, table)
        assert table.data_files() == set()


def test_spark_replaces_unpaired_surrogates_by_question_marks(kind: str, spark: SparkSession) -> None:
    """Java has texts with unpaired surrogates; Spark has none."""
    with new_table(kind) as table:
        write_batch(spark.sql(r"SELECT 'a\ud83db' AS s, hex('a\ud83db') AS h"), table)
        assert by_duckdb(table).to_pylist() == [{"s": "a?b", "h": "613F62"}]


# Names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("",), ("ok", "a\0b"), ("day", "DAY")], ids=repr)
def test_unusable_names_are_refused_by_name(kind: str, spark: SparkSession, names: tuple[str, ...]) -> None:
    rows = spark.range(1).selectExpr(*["id"] * len(names)).toDF(*names)
    with new_table(kind) as table:
        with pytest.raises(Exception, match="SchemaMismatchError") as caught:
            write_batch(rows, table)
        assert {"": "``", "ok": r"a\x00b", "day": "day, DAY"}[names[0]] in str(caught.value)
        assert table.data_files() == set()
