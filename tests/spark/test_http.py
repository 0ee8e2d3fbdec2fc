"""Streams of a real Spark to a real HTTP service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from servers.http_rows import HttpRows
from tests.support.backlogs import wait_until
from tests.support.id_stream import FILES, ROWS, forget_commit, read_ids

import penstock
from penstock.committers.store.sql import open_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def service(http_server: HttpRows) -> HttpRows:
    http_server.set(deduplicate=True)
    http_server.clear()
    return http_server


def run(spark: SparkSession, source: Path, checkpoint: Path, **options: str) -> None:
    rows = read_ids(spark, source)
    writer = rows.repartition(3).writeStream.format("penstock.http").trigger(availableNow=True)
    writer.options(**options, checkpointLocation=str(checkpoint)).start().awaitTermination()


def test_a_coupled_stream_sends_while_it_writes_and_skips_its_replays(
    spark: SparkSession, service: HttpRows, source: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run(spark, source, checkpoint, url=service.url)
    requests = len(service.received())
    forget_commit(checkpoint, FILES - 1)
    run(spark, source, checkpoint, url=service.url)

    assert sorted(service.ids()) == list(range(FILES * ROWS))
    assert len(service.received()) == requests, "the replay sends nothing"
    assert set(service.last_row()) == {"id", "day"}
    with open_store(f"sqlite:///{checkpoint}/penstock.sqlite") as store:
        (stream,) = store.streams()
        token = store.progress.read(stream.key).token
    assert token is not None
    assert token.batch_id == FILES - 1


def test_a_decoupled_stream_is_delivered_beside_its_driver(
    spark: SparkSession, service: HttpRows, source: Path, tmp_path: Path
) -> None:
    """It goes on while the service is down."""
    service.set(answers=(503,) * 1000)
    checkpoint, secret = tmp_path / "checkpoint", "geheim"
    options = {"delivery": "decoupled", "deliverAfterSeconds": "1", "retryFor": "1s", "bearerToken": secret}
    run(spark, source, checkpoint, url=service.url, **options)
    assert len(list((checkpoint / "row-log").rglob("*.arrow"))) > FILES
    assert service.ids() == []

    url = f"sqlite:///{checkpoint}/penstock.sqlite"
    storage = {"bearerToken": secret, "url": service.url}
    with penstock.start_delivery(url, storage=storage), open_store(url) as store:
        (stream,) = store.streams()
        wait_until(lambda: store.deliveries.state(stream.key).tries > 0)
        service.set(deduplicate=True)
        wait_until(lambda: not store.pending(stream.key))

    assert sorted(service.ids()) == list(range(FILES * ROWS))
    assert {one.headers["Authorization"] for one in service.received()} == {f"Bearer {secret}"}
    assert list((checkpoint / "row-log").rglob("*.arrow")) == []
    kept = b"".join(path.read_bytes() for path in checkpoint.rglob("*") if path.is_file())
    assert secret.encode() not in kept


def test_a_decoupled_stream_sends_each_row_to_its_url(
    spark: SparkSession, service: HttpRows, source: Path, tmp_path: Path
) -> None:
    options = {"format": "template", "bodyTemplate": '{{"id": {id}, "on": {day}}}', "method": "PUT"}
    options |= {"delivery": "decoupled", "deliverAfterSeconds": "1", "maxInFlightRequests": "64"}
    checkpoint = tmp_path / "checkpoint"
    run(spark, source, checkpoint, url=f"{service.url}/{{day}}/{{id}}", **options)
    store = f"sqlite:///{checkpoint}/penstock.sqlite"
    with penstock.start_delivery(store), open_store(store) as opened:
        (stream,) = opened.streams()
        wait_until(lambda: not opened.pending(stream.key))

    assert stream.key.table_uri == f"{service.url}/{{day}}/{{id}}"
    assert sorted(service.ids()) == list(range(FILES * ROWS))
    for request, row in zip(service.received(), service.rows(), strict=True):
        assert request.path == f"/rows/{row['on']}/{row['id']}"


def test_a_batch_write_sends_once(spark: SparkSession, service: HttpRows, session_zone: str) -> None:
    frame = spark.range(3).selectExpr(
        "id",
        "cast(id AS DECIMAL(20, 2)) AS d",
        "timestamp_micros(id) AS t",
        "named_struct('a', array(id, null)) AS s",
        "map('k', cast(id AS DOUBLE)) AS m",
        "cast(cast(id AS STRING) AS BINARY) AS b",
        "date_add(DATE'2026-01-01', cast(id AS INT)) AS day",
    )
    writer = frame.coalesce(1).write.format("penstock.http").option("url", service.url)
    writer.option("format", "ndjson").option("method", "PUT").mode("append").save()

    assert service.ids() == [0, 1, 2]
    assert [one.method for one in service.received()] == ["PUT"]
    assert service.last_row() == json.loads(
        '{"id":2,"d":"2.00","t":"1970-01-01T00:00:00.000002Z","s":{"a":[2,null]},"m":{"k":2.0},"b":"Mg==",'
        '"day":"2026-01-03"}'
    )
    with pytest.raises(Exception, match="cannot overwrite"):
        writer.mode("overwrite").save()
