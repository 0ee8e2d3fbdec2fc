"""`df.write.format("penstock.delta")`: the same writers and committer, without a checkpoint."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

pytestmark = pytest.mark.spark


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def ids(spark: SparkSession, first: int, last: int) -> DataFrame:
    return spark.range(first, last, numPartitions=2).withColumn("even", f.col("id") % 2 == 0)


def write(rows: DataFrame, table: Path, mode: str, **options: str) -> None:
    rows.write.format("penstock.delta").mode(mode).options(**options).save(str(table))


def read(table: Path) -> list[int]:
    return sorted(pl.scan_delta(str(table)).collect()["id"].to_list())


def test_append_adds_rows(spark: SparkSession, table: Path) -> None:
    write(ids(spark, 0, 100), table, "append", partitionBy="even")
    write(ids(spark, 100, 150), table, "append")

    assert read(table) == list(range(150))
    assert DeltaTable(str(table)).metadata().partition_columns == ["even"]


def test_overwrite_replaces_all_rows_in_one_commit(spark: SparkSession, table: Path) -> None:
    write(ids(spark, 0, 100), table, "append")
    before = DeltaTable(str(table)).version()
    write(ids(spark, 7, 9), table, "overwrite")

    assert read(table) == [7, 8]
    assert DeltaTable(str(table)).version() == before + 1


def test_an_empty_append_adds_no_commit(spark: SparkSession, table: Path) -> None:
    write(ids(spark, 0, 10), table, "append")
    write(ids(spark, 0, 0), table, "append")

    assert DeltaTable(str(table)).version() == 1


def test_a_failed_write_leaves_the_table_as_it_was(spark: SparkSession, table: Path) -> None:
    write(ids(spark, 0, 10), table, "append")
    failing = ids(spark, 10, 20).coalesce(1)
    failing = failing.withColumn("even", f.expr("if(id = 19, raise_error('nineteen'), even)"))
    with pytest.raises(Exception, match="nineteen"):
        write(failing, table, "append")

    assert read(table) == list(range(10))
    assert len(list(table.glob("*.parquet"))) == 2


def test_wrong_options_are_refused(spark: SparkSession, table: Path) -> None:
    with pytest.raises(Exception, match="Did you mean partitionBy"):
        write(ids(spark, 0, 10), table, "append", partitionsBy="even")
    with pytest.raises(Exception, match="createTable=false"):
        write(ids(spark, 0, 10), table, "append", createTable="false")


def test_other_columns_are_refused_with_both_schemas(spark: SparkSession, table: Path) -> None:
    write(ids(spark, 0, 10), table, "append")
    with pytest.raises(Exception, match="SchemaMismatchError") as refused:
        write(ids(spark, 10, 20).withColumn("id", f.col("id").cast("string")), table, "append")

    assert "string" in str(refused.value)
    assert "long" in str(refused.value)
