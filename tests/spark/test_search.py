"""A stream of a real Spark to OpenSearch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from servers.opensearch import OpenSearchServer
from tests.support.backlogs import wait_until
from tests.support.id_stream import FILES, ROWS, read_ids
from tests.support.search import SearchPlace

import penstock
from penstock.committers.store.sql import open_store

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_decoupled_stream_is_delivered_beside_its_driver(
    spark: SparkSession, opensearch: OpenSearchServer, source: Path, tmp_path: Path
) -> None:
    """The credentials are only in the processes."""
    place = SearchPlace.new(opensearch, "opensearch", opensearch.url)
    checkpoint = tmp_path / "checkpoint"
    secrets = {"username": "me", "password": "geheim-4711"}
    rows = read_ids(spark, source)
    writer = rows.repartition(2).writeStream.format("penstock.opensearch").trigger(availableNow=True)
    writer = writer.options(**place.options(delivery="decoupled", deliverAfterSeconds="1", **secrets))
    writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
    assert place.ids() == []

    url = f"sqlite:///{checkpoint}/penstock.sqlite"
    storage = {"url": place.url, **secrets}
    with penstock.start_delivery(url, storage=storage), open_store(url) as store:
        (stream,) = store.streams()
        wait_until(lambda: not store.pending(stream.key))

    assert place.ids() == list(range(FILES * ROWS))
    assert list((checkpoint / "row-log").rglob("*.arrow")) == []
    kept = b"".join(path.read_bytes() for path in checkpoint.rglob("*") if path.is_file())
    assert b"geheim-4711" not in kept
