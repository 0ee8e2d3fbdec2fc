"""Streams of a real Spark into a folder of files, read back by Spark, DuckDB and polars."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.support.file_rows import SQL, SQL_NESTED, canonical, rows_for, write
from tests.support.files import FilesHarness
from tests.support.id_stream import write_ids

pytestmark = pytest.mark.spark

FILES, ROWS = 3, 100


def test_readers_of_folders_find_the_rows_and_their_partitions(spark: SparkSession, tmp_path: Path) -> None:
    harness, source, checkpoint = FilesHarness(tmp_path), tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    for number in range(FILES):
        write_ids(source / f"{number:05}.parquet", range(number * ROWS, (number + 1) * ROWS), number)
    rows = spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1).parquet(str(source))
    frame = rows.selectExpr("id", "id % 2 AS odd", "array(id) AS ids")
    for _ in range(2):
        writer = frame.writeStream.format("penstock.files").trigger(availableNow=True)
        writer.options(**harness.options, partitionBy="odd", checkpointLocation=str(checkpoint))
        writer.start().awaitTermination()
        for name in (str(FILES - 1), f".{FILES - 1}.crc"):
            (checkpoint / "commits" / name).unlink(missing_ok=True)

    total = FILES * ROWS
    found = spark.read.parquet(str(harness.folder)).selectExpr("count(*)", "sum(id)", "sum(odd)").first()
    assert found is not None
    assert tuple(found) == (total, sum(range(total)), total // 2)
    files = f"read_parquet('{harness.folder}/**/*.parquet', hive_partitioning = true)"
    assert duckdb.sql(f"SELECT count(*), sum(id), sum(odd) FROM {files}").fetchall() == [tuple(found)]
    frames = pl.read_parquet(harness.folder, hive_partitioning=True)
    assert (frames.height, frames["id"].sum(), frames["odd"].sum()) == tuple(found)


def test_readers_see_the_rows_of_spark_s_file_sink_and_of_the_query_that_takes_it_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    harness, source = FilesHarness(tmp_path), tmp_path / "source"
    source.mkdir()
    write_ids(source / "0.parquet", range(10), 0)
    rows = (
        spark.readStream.schema("id LONG").parquet(str(source)).selectExpr("id", "concat('a:', id % 2) AS k")
    )

    def write(sink: str, **options: str) -> None:
        writer = rows.writeStream.format(sink).partitionBy("k").trigger(availableNow=True)
        options = {"path": str(harness.folder), "checkpointLocation": str(tmp_path / "checkpoint"), **options}
        writer.options(**options).start().awaitTermination()

    write("parquet")
    left = next(harness.folder.rglob("*.parquet"))
    left.with_name("part-of-a-failed-attempt.parquet").write_bytes(left.read_bytes())
    write_ids(source / "1.parquet", range(10, 20), 1)
    write("penstock.files", partitionBy="k", sparkMetadata="takeOver", newTarget="allow")

    expected = list(range(20))
    found = spark.read.parquet(str(harness.folder)).collect()
    assert sorted(row.id for row in found) == expected
    assert {row.k for row in found} == {"a:0", "a:1"}
    files = f"read_parquet('{harness.folder}/**/*.parquet', hive_partitioning = true)"
    assert duckdb.sql(f"SELECT id FROM {files} ORDER BY id").fetchall() == [(one,) for one in expected]


# Spark 4.0 cannot parse the type of ORC timestamps.
READABLE = ["json", "csv"] if pyspark.__version__.startswith("4.0") else ["json", "csv", "orc"]


@pytest.mark.parametrize("file_format", READABLE)
def test_spark_reads_each_format_back(spark: SparkSession, tmp_path: Path, file_format: str) -> None:
    rows = rows_for(file_format)
    columns = SQL if file_format == "csv" else SQL_NESTED
    write(FilesHarness(tmp_path, file_format), rows)

    reader = spark.read.format(file_format)
    if file_format != "orc":
        reader = reader.schema(columns)
    if file_format == "csv":
        reader = reader.options(header=True, escape='"', multiLine=True, nullValue=r"\N")
    zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        found = reader.load(str(tmp_path / "rows")).toArrow().to_pylist()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert canonical(found) == canonical(rows.to_pylist())
