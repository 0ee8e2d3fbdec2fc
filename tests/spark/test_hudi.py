"""Streams of a real Spark into Hudi tables, read back by the package hudi."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark import killed_stream
from tests.spark.killed_stream import KilledStream
from tests.support.backlogs import wait_until
from tests.support.hudi import HudiLake
from tests.support.id_stream import write_ids

import penstock
from penstock.committers.store.sql import open_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES, ROWS = 3, 100


@pytest.mark.kills
def test_a_driver_that_is_killed_between_the_phases_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """SIGKILL once prepared, once at the commit, once in the table."""
    lake = HudiLake(tmp_path)
    kills = ("prepare.done", "commit.start", "commit.landed")
    options = {**lake.options, "partitionBy": "day", "recordKey": "id"}
    KilledStream(tmp_path, "penstock.hudi", options, kills).run()

    assert lake.ids() == list(range(killed_stream.ROWS))
    assert {path.partition("/")[0] for path in lake.visible_files()} == {"day=d0", "day=d1", "day=d2"}
    assert not lake.pending()


def test_a_decoupled_stream_is_delivered_batch_by_batch_and_a_batch_write_is_added(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake, source, checkpoint = HudiLake(tmp_path), tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    for number in range(FILES):
        write_ids(source / f"{number:05}.parquet", range(number * ROWS, (number + 1) * ROWS), number)
    rows = spark.readStream.schema("id LONG, day STRING").option("maxFilesPerTrigger", 1).parquet(str(source))
    writer = rows.repartition(2).writeStream.format("penstock.hudi").trigger(availableNow=True)
    options = {**lake.options, "partitionBy": "day", "delivery": "decoupled", "deliverAfterSeconds": "1"}
    writer.options(**options, checkpointLocation=str(checkpoint)).start().awaitTermination()
    assert lake.ids() == []

    with penstock.start_delivery(checkpoint=str(checkpoint)):
        with open_store(f"sqlite:///{checkpoint}/penstock.sqlite") as store:
            (stream,) = store.streams()
            wait_until(lambda: not store.pending(stream.key))
    assert lake.ids() == list(range(FILES * ROWS))
    first, second, _ = lake.commits()
    assert sorted(row["id"] for row in lake.rows(as_of=second)) == list(range(2 * ROWS))
    assert sorted(row["id"] for row in lake.rows(after=first)) == list(range(ROWS, FILES * ROWS))

    frame = spark.range(1000, 1010).selectExpr("id", "'z' AS day")
    frame.write.format("penstock.hudi").options(**lake.options).mode("append").save()
    assert lake.ids()[-10:] == list(range(1000, 1010))
