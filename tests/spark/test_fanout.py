"""A real Spark with one query into a Delta table, an Iceberg table and two HTTP services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from servers.http_rows import HttpRows
from tests.support.backlogs import wait_until
from tests.support.fanouts import NAMES, Fanout, http_fanout
from tests.support.id_stream import write_ids

import penstock

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILES, ROWS = 4, 100


@pytest.fixture
def fanout(tmp_path: Path, two_http_servers: tuple[HttpRows, HttpRows]) -> Iterator[Fanout]:
    with http_fanout(tmp_path, two_http_servers, "checkpoint/penstock.sqlite", deduplicate=True) as fanout:
        yield fanout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(FILES):
        write_ids(folder / f"{number:05}.parquet", range(number * ROWS, (number + 1) * ROWS), number)
    return folder


def pending(fanout: Fanout) -> list[int]:
    """Batches that are not delivered, by the names of the targets."""
    streams = sorted(fanout.store.streams(), key=lambda stream: stream.query_name)
    return [stream.pending for stream in streams]


def test_one_query_delivers_to_all_targets_while_one_is_down(
    spark: SparkSession, fanout: Fanout, source: Path
) -> None:
    fanout.search.set(answers=(401,) * 1000)
    rows = spark.readStream.schema("id LONG, day STRING").option("maxFilesPerTrigger", 1).parquet(str(source))
    writer = rows.repartition(3).writeStream.format("penstock.fanout").trigger(availableNow=True)
    options = fanout.options(queryName="ids")
    with penstock.start_delivery(fanout.store_url):
        writer.options(**options).start().awaitTermination()
        wait_until(lambda: pending(fanout) == [0, 0, 0, FILES])
        fanout.search.set(deduplicate=True)
        wait_until(lambda: pending(fanout) == [0] * 4, 120)
    for name in NAMES:
        assert fanout.ids(name) == list(range(FILES * ROWS)), name
    assert fanout.row_log() == []
    assert {stream.query_name for stream in fanout.store.streams()} == {f"ids.{name}" for name in NAMES}
