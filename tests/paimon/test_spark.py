"""Streams of a real Spark into Paimon tables, read back without pypaimon."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark import killed_stream
from tests.spark.killed_stream import KilledDriver, KilledStream, SourceFiles
from tests.support.backlogs import wait_until
from tests.support.id_stream import write_ids
from tests.support.paimon_catalog import COMMIT, PaimonCatalogHarness
from tests.support.paimon_table import PaimonHarness
from tests.support.random_changes import RandomChanges

import penstock
from penstock.committers.store.sql import open_store
from penstock.testing.conformance.upserts import OPTIONS

pytestmark = pytest.mark.spark

FILES, ROWS = 4, 100


@pytest.mark.kills
@pytest.mark.campaign
def test_a_driver_that_is_killed_between_the_phases_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """SIGKILL once written, once prepared, once in the table."""
    harness = PaimonHarness(tmp_path)
    kills = ("write.files_closed", "prepare.done", "commit.landed")
    KilledStream(tmp_path, "penstock.paimon", harness.options, kills).run()

    assert sorted(harness.ids()) == list(range(killed_stream.ROWS))
    assert harness.problems() == []


@pytest.mark.kills
@pytest.mark.campaign
@pytest.mark.slow
def test_a_driver_that_is_killed_between_the_phases_changes_each_key_once(tmp_path: Path) -> None:
    """With and without late rows, of the same changes; a replay has other partitions."""
    changes, harnesses = RandomChanges(4, 500, 300), dict[str, PaimonHarness]()
    streams, kills = (
        list[KilledStream](),
        ("write.files_closed", "prepare.done", "commit.start", "commit.landed"),
    )
    for late_rows in ("apply", "ignore"):
        harnesses[late_rows] = PaimonHarness(tmp_path / late_rows)
        options = {**harnesses[late_rows].options, **OPTIONS, "lateRows": late_rows}
        options["tableProperties"] = '{"bucket": "3"}'
        streams.append(KilledStream(tmp_path / late_rows, "penstock.paimon", options, kills))
        streams[-1].root.mkdir()
    files = SourceFiles("id LONG, n LONG, text STRING, op STRING", changes.write)
    KilledDriver(tmp_path, streams, files=files).run()

    for late_rows, harness in harnesses.items():
        assert sorted(harness.changed_rows()) == changes.expected(ignores_late=late_rows == "ignore")
        assert harness.problems() == []


def test_a_decoupled_stream_is_delivered_in_one_snapshot_and_skips_its_replays(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With partitions, nested columns and a dead letter."""
    harness, source, checkpoint = PaimonHarness(tmp_path), tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    for number in range(FILES):
        write_ids(source / f"{number:05}.parquet", range(number * ROWS, (number + 1) * ROWS), number, days=2)
    options = {
        **harness.options,
        "partitionBy": "day",
        "delivery": "decoupled",
        "badRows": "deadLetter",
        "deadLetter": str(tmp_path / "refused"),
    }

    def run() -> None:
        rows = spark.readStream.schema("id LONG, day STRING").option("maxFilesPerTrigger", 1)
        frame = rows.parquet(str(source)).repartition(2)
        number = "if(id = 7, 3000000000L, id) AS number"
        frame = frame.selectExpr("id", "day", number, "named_struct('at', timestamp_seconds(id)) AS nested")
        writer = frame.writeStream.format("penstock.paimon").trigger(availableNow=True)
        writer.options(**options, checkpointLocation=str(checkpoint)).start().awaitTermination()

    batch = spark.createDataFrame([(-1, "x", -1)], "id LONG, day STRING, number INT")
    batch = batch.selectExpr("*", "named_struct('at', timestamp_seconds(0)) AS nested")
    batch.write.format("penstock.paimon").options(**harness.options, partitionBy="day").mode("append").save()
    run()
    for name in (str(FILES - 1), f".{FILES - 1}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    run()
    with open_store(f"sqlite:///{checkpoint}/penstock.sqlite") as store:
        (stream,) = [found for found in store.streams() if found.kind == "paimon"]
        assert stream.backlog.batches == FILES
        store.deliveries.wait(stream.key, stream.backlog.oldest_prepared_at)  # deliver now
        with penstock.start_delivery(checkpoint=str(checkpoint)):
            wait_until(lambda: not store.pending(stream.key))
        assert [one.batches for one in store.deliveries.recent(stream.key, 10)] == [FILES]

    found = sorted(harness.rows("id, epoch(nested['at'])"))
    expected = [row_id for row_id in range(FILES * ROWS) if row_id != 7]
    assert found == [(-1, 0.0), *((row_id, float(row_id)) for row_id in expected)]
    assert len(harness.snapshots()) == 2
    assert harness.snapshots()[2]["commitIdentifier"] == FILES - 1
    assert harness.problems() == []


def test_a_delivery_process_commits_to_a_rest_catalog(
    spark: SparkSession, tmp_path: Path, in_catalog: PaimonCatalogHarness
) -> None:
    """Tasks write without the catalog; the process has its options again. An answer is lost."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()
    write_ids(source / "0.parquet", range(ROWS), 0, days=2)
    rows = spark.readStream.schema("id LONG, day STRING").parquet(str(source))
    writer = rows.writeStream.format("penstock.paimon").trigger(availableNow=True)
    options = {**in_catalog.options, "partitionBy": "day", "delivery": "decoupled"}
    writer.options(**options, checkpointLocation=str(checkpoint)).start().awaitTermination()
    with open_store(f"sqlite:///{checkpoint}/penstock.sqlite") as store:
        (stream,) = store.streams()
        store.deliveries.wait(stream.key, stream.backlog.oldest_prepared_at)  # deliver now
        in_catalog.proxy.spend("response lost", on=COMMIT)
        access = {key: in_catalog.properties[key] for key in ("uri", "token")}
        with penstock.start_delivery(checkpoint=str(checkpoint), catalog=access):
            wait_until(lambda: not store.pending(stream.key))

    assert len(in_catalog.proxy.spent()) == 1
    assert sorted(in_catalog.ids()) == list(range(ROWS))
    assert in_catalog.problems() == []
