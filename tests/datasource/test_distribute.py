"""Rows are distributed before the write: one data file for each table partition."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from tests.spark.conftest import spark as spark_in_utc
from tests.support.id_stream import IdStream
from tests.support.lakes import LakeTable, delta_lake, iceberg_lake

import penstock
from penstock import ConfigurationError
from penstock.committers.contract import PartitionField
from penstock.datasource.spark.partition_terms import partition_term
from penstock.writers.parquet.transforms import apply_transform

pytestmark = pytest.mark.spark

__all__ = ["spark_in_utc"]

TASKS, DAYS = 4, 5


@pytest.fixture(scope="module")
def spark(spark_in_utc: SparkSession) -> Iterator[SparkSession]:
    """Its time zone is not UTC: partitions are."""
    theirs = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.shuffle.partitions": "3"}
    before = {key: str(spark_in_utc.conf.get(key)) for key in theirs}
    for key, value in theirs.items():
        spark_in_utc.conf.set(key, value)
    yield spark_in_utc
    for key, value in before.items():
        spark_in_utc.conf.set(key, value)


# The expressions are Iceberg's transforms --------------------------------------------------------------


TEXTS = ["", "a", "ab", "abc", "abcd", "abcde", "héllo", "😀x", "z" * 17, None]


@pytest.fixture(scope="module")
def values(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, DataFrame]:
    chance = random.Random(5)
    texts = TEXTS + ["".join(chr(chance.randint(32, 900)) for _ in range(n % 13)) for n in range(200)]
    start = datetime(2024, 1, 1, tzinfo=timezone.utc)
    times = [start + timedelta(microseconds=chance.randint(-(10**16), 10**15)) for _ in texts]
    times[:4] = [start, start - timedelta(microseconds=1), start - timedelta(days=19723), start]
    table = pa.table(
        {
            "text": pa.array(texts),
            "data": pa.array([None if text is None else text.encode("utf-16") for text in texts]),
            "int": pa.array([chance.randint(-(2**31), 2**31 - 1) for _ in texts], pa.int32()),
            "long": pa.array([chance.randint(-(2**62), 2**62) for _ in texts]),
            "date": pa.array([time.date() for time in times]),
            "time": pa.array(times, pa.timestamp("us", "UTC")),
            "local": pa.array([time.replace(tzinfo=None) for time in times], pa.timestamp("us")),
        }
    )
    path = tmp_path_factory.mktemp("values") / "values.parquet"
    pq.write_table(table, path)
    return table, spark.read.parquet(str(path))


def terms_of(rows: DataFrame, column: str, transform: str) -> list[Any]:
    term = partition_term(PartitionField("", (column,), transform), rows.schema[column].dataType)
    return [row[0] for row in rows.select(term).collect()]


@pytest.mark.parametrize("column", ["text", "data", "int", "long", "date", "time", "local"])
def test_buckets_are_the_very_buckets_of_iceberg(values: tuple[pa.Table, DataFrame], column: str) -> None:
    table, rows = values
    wanted = apply_transform("bucket[16]", table[column].combine_chunks()).to_pylist()
    assert terms_of(rows, column, "bucket[16]") == wanted


@pytest.mark.parametrize(
    ("column", "transform"),
    [
        *[(column, part) for column in ("date", "time", "local") for part in ("year", "month", "day")],
        ("time", "hour"),
        ("local", "hour"),
        ("text", "truncate[3]"),
        ("data", "truncate[4]"),
        ("int", "truncate[7]"),
        ("long", "truncate[100]"),
        ("long", "identity"),
    ],
)
def test_each_partition_has_its_own_value(
    values: tuple[pa.Table, DataFrame], column: str, transform: str
) -> None:
    table, rows = values
    wanted = apply_transform(transform, table[column].combine_chunks()).to_pylist()
    pairs = set(zip(map(str, wanted), map(str, terms_of(rows, column, transform)), strict=True))
    assert len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})


def test_a_transform_that_the_type_has_not_is_refused(values: tuple[pa.Table, DataFrame]) -> None:
    with pytest.raises(ConfigurationError, match="The transform day does not apply to 'int', which is int"):
        penstock.distribute(values[1], "day(int)")


# Files -------------------------------------------------------------------------------------------------


def mixed(spark: SparkSession, ids: int = 2000) -> DataFrame:
    """Every task has rows of every day."""
    rows = spark.range(ids).withColumn("day", F.concat(F.lit("d"), F.col("id") % DAYS))
    return rows.repartition(TASKS)


def files_written(table: LakeTable, rows: DataFrame, **options: str) -> int:
    rows.write.format(table.source).options(**table.options, **options).mode("append").save()
    return len(table.data_files())


@pytest.mark.parametrize("kind", [delta_lake, iceberg_lake])
def test_a_batch_writes_one_file_for_each_partition(spark: SparkSession, tmp_path: Path, kind: Any) -> None:
    plain, brought = kind(tmp_path / "plain"), kind(tmp_path / "brought")
    by = {plain.partitioning: "day"}
    assert files_written(plain, mixed(spark), **by) == TASKS * DAYS
    assert files_written(brought, penstock.distribute(mixed(spark), "day", partitions=TASKS), **by) == DAYS
    assert sorted(rows_of(brought)) == sorted(rows_of(plain))


def rows_of(table: LakeTable) -> Sequence[tuple[object, ...]]:
    from tests.support.lakes import rows

    return rows(table, "id, day")


def test_the_partitioning_of_the_table_is_used(spark: SparkSession, tmp_path: Path) -> None:
    """Of an Iceberg table with buckets: as many files as there are buckets."""
    table = iceberg_lake(tmp_path)
    options = {**table.options, "partitionSpec": "bucket(6, id)"}
    new = penstock.distribute(mixed(spark), format=table.source, options=options, partitions=TASKS)
    assert files_written(table, new, partitionSpec="bucket(6, id)") == 6
    again = penstock.distribute(mixed(spark), format=table.source, options=table.options, partitions=TASKS)
    assert files_written(table, again) == 12


def test_the_partitioning_of_a_delta_table_overrides_options(spark: SparkSession, tmp_path: Path) -> None:
    table = delta_lake(tmp_path)
    files_written(table, mixed(spark, 10).coalesce(1), partitionBy="day")
    before = len(DeltaTable(str(table.folder)).file_uris())
    brought = penstock.distribute(mixed(spark), format=table.source, options=table.options, partitions=TASKS)
    assert files_written(table, brought) - before == DAYS


def test_rows_of_a_partition_may_be_shared_by_some_tasks(spark: SparkSession, tmp_path: Path) -> None:
    table = delta_lake(tmp_path)
    brought = penstock.distribute(mixed(spark), "day", partitions=16, files_per_partition=2)
    assert DAYS < files_written(table, brought, partitionBy="day") <= 2 * DAYS


def test_without_partitions_there_is_one_file(spark: SparkSession, tmp_path: Path) -> None:
    table = delta_lake(tmp_path)
    assert files_written(table, penstock.distribute(mixed(spark), "")) == 1


def test_rows_of_a_batch_are_sorted_by_partition_within_each_task(spark: SparkSession) -> None:
    brought = penstock.distribute(mixed(spark), "day", partitions=2)
    for part in brought.rdd.glom().collect():
        days = [row.day for row in part]
        assert days == sorted(days)


def test_a_stream_writes_one_file_for_each_partition_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    files = {}
    for name in ("plain", "brought"):
        (tmp_path / name).mkdir()
        ids = IdStream(spark, tmp_path / name, delta_lake(tmp_path / name))
        ids.add_files(2)
        rows = ids.rows().repartition(TASKS)
        rows = penstock.distribute(rows, "day", partitions=TASKS) if name == "brought" else rows
        ids.run(rows, partitionBy="day")
        assert ids.findings().problems == []
        files[name] = len(ids.data_files())
    assert files == {"plain": 2 * 2 * TASKS, "brought": 2 * 2}


TO_POSTGRES = {"url": "postgresql://u@h/d", "dbtable": "t"}
"""Its tables are not partitioned by the writer."""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "either `by`, or `format`"),
        ({"by": "id", "format": "penstock.delta"}, "either `by`, or `format`"),
        ({"by": "id", "partitions": 0}, "partitions=0 must be at least 1"),
        ({"by": "id", "files_per_partition": 0}, "files_per_partition=0"),
        ({"format": "parquet"}, "does not know the partitioning of tables of the format 'parquet'"),
        ({"format": "penstock.postgres", "options": TO_POSTGRES}, "the format 'penstock.postgres'"),
        ({"format": "penstock.delta"}, "path is missing"),
        ({"by": "bucket(id)"}, "partitionSpec cannot be parsed"),
    ],
)
def test_invalid_arguments_are_refused(spark: SparkSession, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        penstock.distribute(spark.range(1), **arguments)
