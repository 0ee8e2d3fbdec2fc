"""A real Spark with one query into a table for each day and kind of its rows."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession, functions
from tests.support.cli import Ended
from tests.support.id_stream import write_ids

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES, ROWS, KINDS = 3, 60, 5


def test_each_row_is_once_in_the_table_that_it_names(spark: SparkSession, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    for number in range(FILES):
        write_ids(source / f"{number:05}.parquet", range(number * ROWS, (number + 1) * ROWS), number)
    rows = spark.readStream.schema("id LONG, day STRING").option("maxFilesPerTrigger", 1).parquet(str(source))
    kinds = rows.withColumn("kind", functions.col("id") % KINDS).withColumn(
        "at", functions.current_timestamp()
    )
    writer = kinds.repartition(2).writeStream.format("penstock.delta").trigger(availableNow=True)
    options = {"path": f"{tmp_path}/lake/{{kind}}/{{day}}", "routeBy": "kind, day"}
    writer.options(checkpointLocation=str(checkpoint), **options).start().awaitTermination()
    assert Ended("deliver", "--once", "--checkpoint", str(checkpoint)).code == 0

    found = []
    for folder in (tmp_path / "lake").glob("*/*"):
        table = pl.read_delta(str(folder))
        assert set(table["kind"]) == {int(folder.parent.name)}
        assert set(table["day"]) == {folder.name}
        found += table["id"].to_list()
    assert sorted(found) == list(range(FILES * ROWS))
