"""A stream of a Kafka topic without Spark: its checkpoint and its calls are as Spark makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType
from tests.support.cli import Ended

from penstock.committers.store.sql import open_store
from penstock.datasource.committing import commit_stream_batch
from penstock.datasource.fanout.source import FanoutDataSource
from penstock.datasource.planning.plan import plan_stream_batch
from penstock.datasource.plug_ins import BUILT_IN, load
from penstock.datasource.spark.task import TaskAttempt
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.query import shipped

QUERY_ID = "11111111-1111-1111-1111-111111111111"
IDS = StructType([StructField("id", LongType())])


def orders(*offsets: int) -> str:
    """Offsets of Spark's Kafka source."""
    return json.dumps({"orders": {str(number): offset for number, offset in enumerate(offsets)}})


class Stream:
    """Runs batches as Spark does, with its own checkpoint, into a table of a format."""

    def __init__(self, folder: Path, kind: str, **options: str) -> None:
        self.checkpoint, self.kind, self.batches = folder / "checkpoint", kind, 0
        self.run_id = "run"
        for name in ("offsets", "commits", "sources/0"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": QUERY_ID}))
        (self.checkpoint / "sources/0/0").write_bytes(b"\0v1\n" + orders(10, 0).encode())
        self.store_url = f"sqlite:///{folder}/store.db"
        place = {"path": f"{folder}/t"}
        if kind == "iceberg":
            place = {"warehouse": str(folder), "table": "db.t"}
        if kind == "fanout":
            place = {
                f"target.{one}{more}": value.format(folder / one)
                for one in ("a", "b")
                for more, value in (("", "penstock.delta"), (".path", "{}"))
            }
        self.address = f"{folder}:db.t" if kind == "iceberg" else f"{folder}/t"
        given = {"checkpointLocation": str(self.checkpoint), "store": self.store_url, **place, **options}
        self.options = {key.lower(): value for key, value in given.items()}

    def run(self, *offsets: str) -> None:
        """Run the next batch: it ends at these offsets, one for each source."""
        batch_id, self.batches = self.batches, self.batches + 1
        metadata = json.dumps({"batchWatermarkMs": 0})
        (self.checkpoint / "offsets" / str(batch_id)).write_text("\n".join(["v1", metadata, *offsets]))
        query = self._data_source(self.options).query()
        plan = shipped(plan_stream_batch(query, IDS, overwrite=False))
        rows = pa.record_batch({"id": [batch_id]})
        tasks = [TaskAttempt(number, 0, self.run_id, QUERY_ID, batch_id) for number in (0, 1)]
        commit_stream_batch(query, [shipped(plan.write([rows], task)) for task in tasks])

    @property
    def _data_source(self) -> Any:
        if self.kind == "fanout":
            return FanoutDataSource
        source: Any = load(BUILT_IN[self.kind]).data_source
        return load(source)

    def deliver(self) -> None:
        with open_store(self.store_url) as store:
            deliver(store)

    def lineage(self, *arguments: str, table: str = "") -> Any:
        return Ended("lineage", table or self.address, *arguments, "--json").json

    @property
    def version(self) -> str:
        with open_store(self.store_url) as store:
            (stream,) = store.streams()
        assert stream.written is not None
        return str(stream.written.table_version)
