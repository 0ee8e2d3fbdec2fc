"""Streams of a real Spark into Hudi tables, read back by the package hudi."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.backlogs import wait_until
from tests.support.hudi import HudiLake
from tests.support.id_stream import FILES, ROWS, read_ids

import penstock
from penstock.committers.store.sql import open_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_decoupled_stream_is_delivered_in_one_commit_and_a_batch_write_is_added(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    lake, checkpoint = HudiLake(tmp_path), tmp_path / "checkpoint"
    rows = read_ids(spark, source)
    writer = rows.repartition(2).writeStream.format("penstock.hudi").trigger(availableNow=True)
    options = {**lake.options, "partitionBy": "day", "delivery": "decoupled", "deliverAfterSeconds": "1"}
    writer.options(**options, checkpointLocation=str(checkpoint)).start().awaitTermination()
    assert lake.ids() == []

    with penstock.start_delivery(checkpoint=str(checkpoint)):
        with open_store(f"sqlite:///{checkpoint}/penstock.sqlite") as store:
            (stream,) = store.streams()
            wait_until(lambda: not store.pending(stream.key))
    assert lake.ids() == list(range(FILES * ROWS))
    (instant,) = lake.commits()
    assert {row["_hoodie_commit_time"] for row in lake.rows()} == {instant}

    frame = spark.range(1000, 1010).selectExpr("id", "'z' AS day")
    frame.write.format("penstock.hudi").options(**lake.options).mode("append").save()
    assert lake.ids()[-10:] == list(range(1000, 1010))
