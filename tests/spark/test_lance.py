"""Streams of a real Spark into Lance tables, read back by Lance's SQL engine in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.support.backlogs import wait_until
from tests.support.id_stream import FILES, ROWS, forget_commit
from tests.support.lance_table import LanceHarness

import penstock
from penstock.committers.store.sql import open_store

pytestmark = pytest.mark.spark

READ = """
import json, sys, lance
batches = lance.dataset(sys.argv[1]).sql(sys.argv[2]).build().to_batch_records()
print(json.dumps([list(row.values()) for batch in batches for row in batch.to_pylist()]))
"""


def sql(harness: LanceHarness, statement: str) -> list[list[Any]]:
    """The rows of a query over the table, which is called `dataset`. The process has not written it."""
    command = [sys.executable, "-c", READ, str(harness.path), statement]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def test_a_decoupled_stream_of_vectors_is_delivered_and_skips_its_replays(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    """One bad vector becomes a dead letter."""
    harness, checkpoint = LanceHarness(tmp_path), tmp_path / "checkpoint"
    options = {
        **harness.options,
        "vectors": "embedding:3:float16",
        "delivery": "decoupled",
        "badRows": "deadLetter",
        "deadLetter": str(tmp_path / "refused"),
    }

    def run() -> None:
        rows = spark.readStream.schema("id LONG, day STRING").option("maxFilesPerTrigger", 1)
        vector = "if(id = 7, array(1f), array(id / 2, 1, -1)) AS embedding"
        frame = (
            rows.parquet(str(source)).repartition(2).selectExpr("id", "named_struct('day', day) AS s", vector)
        )
        writer = frame.writeStream.format("penstock.lance").trigger(availableNow=True)
        writer.options(**options, checkpointLocation=str(checkpoint)).start().awaitTermination()

    run()
    forget_commit(checkpoint, FILES - 1)
    run()
    with open_store(f"sqlite:///{checkpoint}/penstock.sqlite") as store:
        (stream,) = [found for found in store.streams() if found.kind == "lance"]
        assert stream.backlog.batches == FILES
        store.deliveries.wait(stream.key, stream.backlog.oldest_prepared_at)  # deliver now
        with penstock.start_delivery(checkpoint=str(checkpoint)):
            wait_until(lambda: not store.pending(stream.key))
        assert [one.batches for one in store.deliveries.recent(stream.key, 10)] == [FILES]

    total = FILES * ROWS
    found = sql(harness, "SELECT count(*), count(DISTINCT id), min(s['day']) FROM dataset")
    assert found[0][:2] == [total - 1, total - 1]
    assert found[0][2]
    assert sql(harness, "SELECT embedding FROM dataset WHERE id = 9") == [[[4.5, 1.0, -1.0]]]
    assert sql(harness, "SELECT id FROM dataset WHERE id = 7") == []
    assert harness.problems() == []
