"""Streams of a real Spark to services of AWS."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from servers.aws import KEY, SECRET, AwsServer
from tests.support.aws import NAMED_BY, AwsPlace
from tests.support.backlogs import wait_until
from tests.support.id_stream import FILES, ROWS, read_ids

import penstock
from penstock.committers.store.sql import open_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize(
    "kind",
    ["kinesis", *(pytest.param(one, marks=pytest.mark.campaign) for one in NAMED_BY if one != "kinesis")],
)
def test_a_decoupled_stream_is_delivered_beside_its_driver(
    spark: SparkSession, aws_service: AwsServer, source: Path, tmp_path: Path, kind: str
) -> None:
    """The service throttles. The credentials are only in the processes."""
    place = AwsPlace.new(aws_service, kind)
    checkpoint = tmp_path / "checkpoint"
    aws_service.throttle(requests=2, entries_of=2)
    rows = read_ids(spark, source)
    writer = rows.repartition(2).writeStream.format(f"penstock.{kind}").trigger(availableNow=True)
    writer = writer.options(**place.options(delivery="decoupled", deliverAfterSeconds="1"))
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
    assert len(list((checkpoint / "row-log").rglob("*.arrow"))) >= FILES
    assert place.rows() == []

    url = f"sqlite:///{checkpoint}/penstock.sqlite"
    storage = {"accessKeyId": KEY, "secretAccessKey": SECRET}
    with penstock.start_delivery(url, storage=storage), open_store(url) as store:
        (stream,) = store.streams()
        wait_until(lambda: not store.pending(stream.key))

    delivered = place.rows()
    assert sorted(int(row["id"]) for row in delivered) == list(range(FILES * ROWS))
    assert set(delivered[0]) == {"id", "day"}
    assert aws_service.refused()["requests"] == 2
    assert list((checkpoint / "row-log").rglob("*.arrow")) == []
    kept = b"".join(path.read_bytes() for path in checkpoint.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept
    assert KEY.encode() not in kept
