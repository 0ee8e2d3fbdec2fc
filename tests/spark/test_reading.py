"""`spark.read.format("penstock.…")`: types, filters, partitions and versions, without jars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.support.lakes import IcebergLake, LakeTable
from tests.support.postgres import PostgresTable

from penstock import reader

pytestmark = pytest.mark.spark

KEEPS_VERSION = not pyspark.__version__.startswith("4.0.")
"""Spark 4.0 asks a source for its rows again for each query of a DataFrame."""
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SCHEMA = """
    id bigint, flag boolean, i int, f float, d double, price decimal(9,2), text string, bin binary, day date,
    ts timestamp, ntz timestamp_ntz, l array<bigint>, m map<string,double>,
    s struct<a: bigint, b: array<string>>
"""


def typed_rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 1000, numPartitions=2).selectExpr(
        "id",
        "id % 2 = 0 AS flag",
        "cast(if(id % 7 = 0, NULL, id) AS int) AS i",
        "cast(if(id % 5 = 0, 'NaN', id / 10) AS float) AS f",
        "cast(if(id % 3 = 0, 'NaN', id / 10) AS double) AS d",
        "cast(id / 100 AS decimal(9,2)) AS price",
        "if(id % 11 = 0, NULL, concat('text ', id % 10)) AS text",
        "cast(cast(id AS string) AS binary) AS bin",
        "date_add(DATE'1969-12-01', cast(id AS int)) AS day",
        "timestamp_micros(id * 1000003 - 5000000) AS ts",
        "cast(timestamp_micros(id * 1000003 - 5000000) AS timestamp_ntz) AS ntz",
        "if(id % 4 = 0, NULL, array(id, NULL)) AS l",
        "if(id % 4 = 1, NULL, map('k', double('NaN'))) AS m",
        "if(id % 4 = 2, NULL, named_struct('a', id, 'b', array('x', NULL))) AS s",
    )


def read(spark: SparkSession, table: LakeTable, **options: str) -> DataFrame:
    return spark.read.format(table.source).options(**table.options, **options).load()


def write(rows: DataFrame, table: LakeTable, **options: str) -> None:
    rows.write.format(table.source).mode("append").options(**table.options, **options).save()


def in_order(rows: DataFrame) -> list[str]:
    return [repr(row) for row in rows.orderBy("id").collect()]


@pytest.fixture(params=["true", "false"])
def pushdown(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    """The setting, which Spark 4.0 does not know."""
    before = spark.conf.get(PUSHDOWN, None)
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param
    spark.conf.unset(PUSHDOWN) if before is None else spark.conf.set(PUSHDOWN, before)


def test_rows_and_types_are_those_that_were_written(spark: SparkSession, table: LakeTable) -> None:
    rows = typed_rows(spark)
    write(rows, table)
    found = read(spark, table)
    assert found.schema.simpleString() == spark.createDataFrame([], SCHEMA).schema.simpleString()
    assert in_order(found) == in_order(rows)


def test_a_data_frame_has_all_rows_after_a_query_with_a_filter(
    spark: SparkSession, table: LakeTable, pushdown: str
) -> None:
    """Spark keeps what a reader has planned for the first query."""
    write(spark.range(0, 1000), table)
    found = read(spark, table)
    assert found.where("id = 5").count() == 1
    assert found.count() == 1000
    assert found.where("id = 6 OR id = 7").count() == 2
    assert found.where("id = 6").count() == 1


def test_a_data_frame_keeps_its_version(spark: SparkSession, table: LakeTable) -> None:
    write(spark.range(0, 10), table)
    found = read(spark, table)
    assert found.count() == 10
    write(spark.range(10, 20), table)
    assert found.count() == (10 if KEEPS_VERSION else 20)
    assert read(spark, table).count() == 20


def test_columns_and_conditions_are_options(spark: SparkSession, table: LakeTable) -> None:
    write(typed_rows(spark), table)
    found = read(spark, table, columns="text, id", where="id >= 990 AND text IS NOT NULL")
    assert found.columns == ["text", "id"]
    assert found.count() == 9
    given = spark.read.format(table.source).options(**table.options).schema("text string, id bigint").load()
    assert given.where("id = 7").collect() == [("text 7", 7)]


def test_files_are_skipped_and_divided_between_tasks(spark: SparkSession, table: LakeTable) -> None:
    rows = spark.range(0, 400_000, numPartitions=4).withColumn(
        "noise", f.sha2(f.col("id").cast("string"), 512)
    )
    write(rows, table, rowGroupRows="10000")
    whole = read(spark, table, splitSize="1mb")
    assert whole.rdd.getNumPartitions() > 4
    assert whole.select(f.countDistinct("id"), f.count("id")).collect() == [(400_000, 400_000)]
    few = read(spark, table, where="id = 5")
    assert few.rdd.getNumPartitions() == 1
    assert few.count() == 1


def test_partition_columns_are_read(spark: SparkSession, table: LakeTable) -> None:
    rows = spark.createDataFrame([(1, "a/b=%"), (2, None), (3, "é x")], "id bigint, part string")
    write(rows, table, **{table.partitioning: "part"})
    assert in_order(read(spark, table)) == in_order(rows)
    assert read(spark, table).where("part = 'a/b=%'").collect() == [(1, "a/b=%")]
    assert read(spark, table).where("part IS NULL").collect() == [(2, None)]


def test_an_earlier_version_is_read(spark: SparkSession, table: LakeTable) -> None:
    write(spark.range(0, 10), table)
    version = {"versionAsOf": "1"}
    if isinstance(table, IcebergLake):
        snapshot = table.load().current_snapshot()
        assert snapshot is not None
        version = {"snapshotId": str(snapshot.snapshot_id)}
    write(spark.range(10, 30), table)
    assert read(spark, table).count() == 30
    assert read(spark, table, **version).count() == 10


def test_not_null_columns_stay_not_null(spark: SparkSession, table: LakeTable) -> None:
    table.create(pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("more", pa.string())]))
    found = read(spark, table)
    assert [field.nullable for field in found.schema.fields] == [False, True]
    assert found.count() == 0


def test_what_is_wrong_is_said_without_a_traceback(
    spark: SparkSession, table: LakeTable, tmp_path: Path
) -> None:
    write(spark.range(0, 10), table)
    with pytest.raises(Exception, match="Did you mean where"):
        read(spark, table, wehre="id = 1").collect()
    with pytest.raises(Exception, match="there is no column nothing"):
        read(spark, table, where="nothing = 1").collect()
    with pytest.raises(Exception, match="Spark wants"):
        spark.read.format(table.source).options(**table.options).schema("id string").load().collect()


def test_a_temporary_view_is_read_and_inserted_into_in_sql(spark: SparkSession, table: LakeTable) -> None:
    write(spark.range(10), table)
    options = ", ".join(f"{name} '{value}'" for name, value in table.options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW of_table USING {table.source} OPTIONS ({options})")
    spark.sql("INSERT INTO of_table SELECT id + 10 FROM range(10)")
    found = spark.sql("SELECT count(*), max(id) FROM of_table WHERE id > 4").first()
    assert found == (15, 19)
    assert sorted(table.ids()) == list(range(20))


def test_tables_in_the_catalog_of_spark_are_refused(spark: SparkSession, table: LakeTable) -> None:
    """Spark gives their options to no source in Python, so later statements would not know the table."""
    write(spark.range(10), table)
    options = ", ".join(f"{name} '{value}'" for name, value in table.options.items())
    with pytest.raises(AnalysisException, match=rf"{table.source} cannot be a table in Spark's catalog"):
        spark.sql(f"CREATE TABLE inferred USING {table.source} OPTIONS ({options})")
    spark.sql(f"CREATE TABLE created (id bigint) USING {table.source} OPTIONS ({options})")
    try:
        for statement in ("SELECT * FROM created", "INSERT INTO created SELECT 1L"):
            with pytest.raises(AnalysisException, match=r"(?s)is missing.*CREATE TEMPORARY VIEW"):
                spark.sql(statement).collect()
    finally:
        spark.sql("DROP TABLE created")


def test_a_stream_writes_and_the_same_session_reads(
    spark: SparkSession, table: LakeTable, tmp_path: Path
) -> None:
    spark.range(0, 100).write.parquet(str(tmp_path / "source"))
    query = (
        spark.readStream.schema("id bigint")
        .parquet(str(tmp_path / "source"))
        .writeStream.format(table.source)
        .options(**table.options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert read(spark, table).select(f.sum("id")).collect() == [(4950,)]


# Formats without streams ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class OtherTable:
    source: str
    write: Mapping[str, str]
    """Options with which it is written."""
    options: Mapping[str, str]
    version: str | None
    """The option for the number of an earlier version."""
    own_columns: int = 0
    """Columns of the format before those that were written."""
    dropped: tuple[str, ...] = ()
    """Columns that it cannot store."""
    secret: Mapping[str, str] = field(default_factory=lambda: {"storage.AWS_SECRET_ACCESS_KEY": SECRET})
    """Options with a secret."""
    keeps_version: bool = KEEPS_VERSION
    """A DataFrame has the rows of the time when it was made."""


SECRET = "geheim-4711"


def lance_table(folder: Path) -> OtherTable:
    options = {"path": str(folder / "t.lance")}
    return OtherTable("penstock.lance", options, options, "versionAsOf")


def ducklake_table(folder: Path) -> OtherTable:
    catalog = {"catalog": f"sqlite:{folder}/catalog.sqlite", "table": "events"}
    write = {**catalog, "dataPath": f"{folder}/data/"}
    return OtherTable("penstock.ducklake", write, catalog, "versionAsOf")


def hudi_table(folder: Path) -> OtherTable:
    options = {"path": str(folder / "events")}
    return OtherTable("penstock.hudi", options, options, None, own_columns=5)


def postgres_table(new_url: Callable[[], str]) -> OtherTable:
    options = PostgresTable(new_url()).options
    secret = {"url": options["url"].replace("postgres:@", f"postgres:{SECRET}@")}
    return OtherTable(
        "penstock.postgres",
        options,
        options,
        None,
        dropped=("m", "s"),
        secret={**secret, "numPartitions": "2"},
        keeps_version=False,
    )


OTHERS = {"lance": lance_table, "ducklake": ducklake_table, "hudi": hudi_table}


@pytest.fixture(params=[*OTHERS, "postgres"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> OtherTable:
    if request.param == "postgres":
        return postgres_table(request.getfixturevalue("new_postgres_url"))
    return OTHERS[request.param](tmp_path)


def test_other_formats_are_read_as_they_were_written(spark: SparkSession, other: OtherTable) -> None:
    """In one test for all that Spark does with them: a format costs little then."""

    def load(**options: str) -> DataFrame:
        return spark.read.format(other.source).options(**{**other.options, **options}).load()

    rows = typed_rows(spark).drop(*other.dropped)
    rows.write.format(other.source).mode("append").options(**other.write).save()
    found = load()
    found = found.select(found.columns[other.own_columns :])
    wanted = spark.createDataFrame([], SCHEMA).drop(*other.dropped)
    assert found.schema.simpleString() == wanted.schema.simpleString()
    assert in_order(found) == in_order(rows)
    assert found.where("id = 5").count() == 1
    where = "id >= 990 AND text IS NOT NULL AND (d > 5 OR d IS NAN)"
    few = load(columns="text, id", where=where, **other.secret)
    assert SECRET not in few._jdf.queryExecution().toString()
    assert few.columns == ["text", "id"]
    assert few.count() == 9
    rows.where("id < 10").write.format(other.source).mode("append").options(**other.write).save()
    assert load().count() == 1010
    if other.version is not None:
        name = reader.open_table(other.source, other.options).reader.name
        newest = int(name.split()[1])  # as in "version 7 of …"
        assert load(**{other.version: str(newest - 1)}).count() == 1000
    assert found.count() == (1000 if other.keeps_version else 1010)


def test_a_format_without_streams_says_so(spark: SparkSession) -> None:
    source = spark.readStream.format("penstock.postgres").schema("id LONG")
    stream = source.options(url="postgresql://nowhere/db", dbtable="t").load()
    query = stream.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"spark\.readStream does not read"):
        query.awaitTermination()
