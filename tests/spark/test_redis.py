"""Streams of a real Spark to a real Redis."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from servers.redis import RedisServer
from tests.support.backlogs import wait_until
from tests.support.id_stream import FILES, ROWS, read_ids

import penstock
from penstock.committers.store.sql import open_store
from penstock.testing.conformance import SECRET

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_decoupled_stream_is_delivered_once_beside_its_driver(
    spark: SparkSession, redis_service: RedisServer, source: Path, tmp_path: Path
) -> None:
    redis_service.add_user("writer", SECRET)
    checkpoint = tmp_path / "checkpoint"
    credentials = {"username": "writer", "password": SECRET}
    options = {
        "url": redis_service.url,
        "structure": "stream",
        "key": "rows:{day}",
        "exactlyOnce": "true",
        "delivery": "decoupled",
        "deliverAfterSeconds": "1",
        "checkpointLocation": str(checkpoint),
    }
    rows = read_ids(spark, source)
    writer = rows.repartition(2).writeStream.format("penstock.redis").trigger(availableNow=True)
    writer.options(**options, **credentials).start().awaitTermination()
    assert redis_service.rows("rows:*") == []

    url = f"sqlite:///{checkpoint}/penstock.sqlite"
    storage = {"url": redis_service.url, **credentials}
    with penstock.start_delivery(url, storage=storage), open_store(url) as store:
        (stream,) = store.streams()
        wait_until(lambda: not store.pending(stream.key))

    delivered = redis_service.rows("rows:*")
    assert sorted(row["id"] for row in delivered) == list(range(FILES * ROWS))
    assert set(delivered[0]) == {"id", "day"}
    kept = b"".join(path.read_bytes() for path in checkpoint.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept
