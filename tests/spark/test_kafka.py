"""Streams of a real Spark to a real Kafka."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from servers.kafka import KafkaServer
from tests.support.backlogs import wait_until
from tests.support.id_stream import FILES, ROWS, read_ids
from tests.support.kafka_topic import secure_options

import penstock
from penstock.committers.store.sql import open_store
from penstock.testing.conformance import SECRET

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("delivery", ["coupled", "decoupled"])
def test_a_stream_is_in_kafka_once(
    spark: SparkSession, kafka_process: KafkaServer, source: Path, tmp_path: Path, delivery: str
) -> None:
    """With the columns of Spark's own sink. The password is not kept."""
    topic, checkpoint = f"rows-{uuid.uuid4().hex}", tmp_path / "checkpoint"
    kafka_process.create(topic)
    secure = secure_options(kafka_process)
    rows = read_ids(spark, source).selectExpr(
        "to_json(struct(*)) AS value", "CAST(id AS STRING) AS key", f"'{topic}' AS topic"
    )
    given = {"delivery": delivery, "deliverAfterSeconds": "1", "checkpointLocation": str(checkpoint)}
    writer = rows.writeStream.format("penstock.kafka").trigger(availableNow=True).options(**secure, **given)
    writer.start().awaitTermination()
    if delivery == "decoupled":
        assert kafka_process.records(topic) == []
        url = f"sqlite:///{checkpoint}/penstock.sqlite"
        with penstock.start_delivery(url, storage=secure), open_store(url) as store:
            (stream,) = store.streams()
            wait_until(lambda: not store.pending(stream.key))

    # A commit returns when its end is certain; readers see it partition by partition after that.
    wait_until(lambda: len(kafka_process.records(topic)) >= FILES * ROWS)
    records = kafka_process.records(topic)
    assert sorted(json.loads(one.value())["id"] for one in records) == list(range(FILES * ROWS))
    assert all(json.loads(one.value())["id"] == int(one.key()) for one in records)
    kept = b"".join(path.read_bytes() for path in checkpoint.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept
