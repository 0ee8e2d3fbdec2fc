"""Streams of a real Spark with rows that their destination refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from servers.http_rows import HttpRows
from tests.support.backlogs import wait_until
from tests.support.lakes import DeltaLake

import penstock
from penstock.committers.store.sql import open_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES, ROWS = 3, 50
BAD = (7, 60, 149)
"""Ids of rows with a number that does not fit, or that the service refuses."""
GOOD = sorted(set(range(FILES * ROWS)) - set(BAD))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        numbers = pa.array([2**40 if row_id in BAD else row_id for row_id in ids], pa.int64())
        rows = pa.table({"id": pa.array(ids, pa.int64()), "number": numbers})
        pq.write_table(rows, folder / f"{number}.parquet")
    return folder


def run(spark: SparkSession, name: str, source: Path, checkpoint: Path, **options: str) -> None:
    rows = (
        spark.readStream.schema("id LONG, number LONG").option("maxFilesPerTrigger", 1).parquet(str(source))
    )
    writer = rows.repartition(2).writeStream.format(name).trigger(availableNow=True)
    options |= {"badRows": "deadLetter", "deadLetter": str(checkpoint.parent / "refused")}
    writer.options(**options, checkpointLocation=str(checkpoint)).start().awaitTermination()


def refused(folder: Path) -> list[tuple[int, str]]:
    """Ids and codes in the dead-letter table."""
    found = DeltaLake(folder / "refused").rows("row, code")
    return sorted((json.loads(str(row))["id"], str(code)) for row, code in found)


def replay_last(checkpoint: Path) -> None:
    for name in (str(FILES - 1), f".{FILES - 1}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def test_an_overflow_does_not_stop_a_stream_into_a_table(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    lake, checkpoint = DeltaLake(tmp_path / "table"), tmp_path / "checkpoint"
    lake.create(pa.schema([("id", pa.int64()), ("number", pa.int32())]))
    run(spark, "penstock.delta", source, checkpoint, path=str(lake.path))
    replay_last(checkpoint)
    run(spark, "penstock.delta", source, checkpoint, path=str(lake.path))

    assert lake.ids() == GOOD
    assert refused(tmp_path) == [(row_id, "does_not_fit") for row_id in BAD]


def test_a_poison_row_does_not_stop_a_stream_of_requests(
    spark: SparkSession, source: Path, tmp_path: Path, http_server: HttpRows
) -> None:
    http_server.clear()
    http_server.set(refused=BAD)
    run(spark, "penstock.http", source, tmp_path / "checkpoint", url=http_server.url)

    assert sorted(http_server.ids()) == GOOD
    assert refused(tmp_path) == [(row_id, "422") for row_id in BAD]


def test_a_poison_row_does_not_stop_a_delivery(
    spark: SparkSession, source: Path, tmp_path: Path, http_server: HttpRows
) -> None:
    http_server.clear()
    http_server.set(refused=BAD)
    checkpoint = tmp_path / "checkpoint"
    options = {"url": http_server.url, "delivery": "decoupled", "deliverAfterSeconds": "1"}
    run(spark, "penstock.http", source, checkpoint, **options)
    assert not DeltaLake(tmp_path / "refused").exists
    url = f"sqlite:///{checkpoint}/penstock.sqlite"
    with penstock.start_delivery(url), open_store(url) as store:
        stream = next(one.key for one in store.streams() if one.kind == "http")
        wait_until(lambda: not store.pending(stream))
        wait_until(lambda: not store.dead_letters.counts(stream))

    assert sorted(http_server.ids()) == GOOD
    assert refused(tmp_path) == [(row_id, "422") for row_id in BAD]
