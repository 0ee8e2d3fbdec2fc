"""`df.write.format("penstock.…")`: the same writers and committer, without a checkpoint."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.support.lakes import DeltaLake, LakeTable, rows

pytestmark = pytest.mark.spark


def ids(spark: SparkSession, first: int, last: int) -> DataFrame:
    return spark.range(first, last, numPartitions=2).withColumn("even", f.col("id") % 2 == 0)


def write(rows: DataFrame, table: LakeTable, mode: str, **options: str) -> None:
    rows.write.format(table.source).mode(mode).options(**table.options, **options).save()


def read(table: LakeTable) -> list[object]:
    return [number for (number,) in rows(table, "id")]


def test_append_adds_rows(spark: SparkSession, table: LakeTable) -> None:
    write(ids(spark, 0, 100), table, "append", **{table.partitioning: "even"})
    write(ids(spark, 100, 150), table, "append")

    assert read(table) == list(range(150))
    folders = {path.rpartition("/")[0].rpartition("/")[2] for path in table.data_files()}
    assert folders == {"even=true", "even=false"}


def test_overwrite_replaces_all_rows_in_one_commit(spark: SparkSession, table: LakeTable) -> None:
    write(ids(spark, 0, 100), table, "append")
    before = table.versions()
    write(ids(spark, 7, 9), table, "overwrite")

    assert read(table) == [7, 8]
    assert table.versions() == before + 1


def test_an_empty_append_adds_no_commit(spark: SparkSession, table: LakeTable) -> None:
    write(ids(spark, 0, 10), table, "append")
    versions = table.versions()
    write(ids(spark, 0, 0), table, "append")

    assert table.versions() == versions


def test_a_failed_write_leaves_the_table_as_it_was(spark: SparkSession, table: LakeTable) -> None:
    write(ids(spark, 0, 10), table, "append")
    failing = ids(spark, 10, 20).coalesce(1)
    failing = failing.withColumn("even", f.expr("if(id = 19, raise_error('nineteen'), even)"))
    with pytest.raises(Exception, match="nineteen"):
        write(failing, table, "append")

    assert read(table) == list(range(10))
    assert len(table.data_files()) == 2


def test_wrong_options_are_refused(spark: SparkSession, delta_table: DeltaLake) -> None:
    with pytest.raises(Exception, match="Did you mean partitionBy"):
        write(ids(spark, 0, 10), delta_table, "append", partitionsBy="even")
    with pytest.raises(Exception, match="createTable=false"):
        write(ids(spark, 0, 10), delta_table, "append", createTable="false")


def test_other_columns_are_refused_with_both_schemas(spark: SparkSession, table: LakeTable) -> None:
    write(ids(spark, 0, 10), table, "append")
    with pytest.raises(Exception, match="SchemaMismatchError") as refused:
        write(ids(spark, 10, 20).withColumn("id", f.col("id").cast("string")), table, "append")

    assert "string" in str(refused.value)
    assert "long" in str(refused.value)
