"""Which offsets a batch has read: from Spark's checkpoint into store and table, and how they are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType
from tests.support.cli import Ended

from penstock.committers.lineage import (
    HISTORY_CHARS_MAX,
    PartitionRange,
    SourceLineage,
    SourceRange,
    history_text,
    merged_ranges,
    of_history,
    of_stored,
    stored,
)
from penstock.committers.store.sql import open_store
from penstock.datasource.committing import commit_stream_batch
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
        for name in ("offsets", "commits", "sources/0"):
            (self.checkpoint / name).mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": QUERY_ID}))
        (self.checkpoint / "sources/0/0").write_bytes(b"\0v1\n" + orders(10, 0).encode())
        self.store_url = f"sqlite:///{folder}/store.db"
        place = {"warehouse": str(folder), "table": "db.t"} if kind == "iceberg" else {"path": f"{folder}/t"}
        self.address = f"{folder}:db.t" if kind == "iceberg" else f"{folder}/t"
        given = {"checkpointLocation": str(self.checkpoint), "store": self.store_url, **place, **options}
        self.options = {key.lower(): value for key, value in given.items()}

    def run(self, *offsets: str) -> None:
        """Run the next batch: it ends at these offsets, one for each source."""
        batch_id, self.batches = self.batches, self.batches + 1
        metadata = json.dumps({"batchWatermarkMs": 0})
        (self.checkpoint / "offsets" / str(batch_id)).write_text("\n".join(["v1", metadata, *offsets]))
        source: Any = load(BUILT_IN[self.kind]).data_source
        query = load(source)(self.options).query()
        plan = shipped(plan_stream_batch(query, IDS, overwrite=False))
        rows = pa.record_batch({"id": [batch_id]})
        tasks = [TaskAttempt(number, 0, "run", QUERY_ID, batch_id) for number in (0, 1)]
        commit_stream_batch(query, [shipped(plan.write([rows], task)) for task in tasks])

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


Streams = Callable[..., Stream]


@pytest.fixture
def start(tmp_path: Path) -> Streams:
    return lambda kind, **options: Stream(tmp_path, kind, **options)


def read(found: Any) -> list[tuple[object, ...]]:
    return [tuple(one.values()) for source in found["sources"] for one in source["partitions"]]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_version_of_a_table_says_which_offsets_it_has_and_an_offset_in_which_version_it_is(
    kind: str, start: Streams
) -> None:
    """From the table alone, and from the store alone."""
    stream = start(kind)
    stream.run(orders(15, 0))
    first = stream.version
    stream.run(orders(15, 7))
    versions = {first: [("orders", 0, 10, 15)], stream.version: [("orders", 1, 0, 7)]}
    at_14 = ("--topic", "orders", "--partition", "0", "--offset", "14")

    for where in ((), ("--store", stream.store_url)):
        for version, offsets in versions.items():
            assert read(stream.lineage(version, *where)) == offsets
        assert stream.lineage(*at_14, *where)["version_text"] == first
        for missing in ("9", "15"):
            assert Ended("lineage", stream.address, *at_14[:5], missing, *where).code == 2


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_delivery_has_the_offsets_of_all_its_batches(kind: str, start: Streams) -> None:
    """A batch that waits is found in the store."""
    stream = start(kind, delivery="decoupled")
    for end in (20, 30, 40):
        stream.run(orders(end, 5))
    at_25 = ("--topic", "orders", "--partition", "0", "--offset", "25")
    waiting = stream.lineage(*at_25, "--store", stream.store_url)
    assert (waiting["version"], waiting["batch_ids"]) == (None, [1])

    stream.deliver()

    for where in ((), ("--store", stream.store_url)):
        found = stream.lineage(stream.version, *where)
        assert (read(found), found["batch_ids"]) == ([("orders", 0, 10, 40), ("orders", 1, 0, 5)], [0, 1, 2])
        assert stream.lineage(*at_25, *where)["version_text"] == stream.version


def test_a_topic_of_many_partitions_is_only_in_the_store(start: Streams) -> None:
    stream = start("delta")
    stream.run(json.dumps({"orders": {str(number): 10**12 + number for number in range(1000)}}))

    assert stream.lineage(stream.version)["sources"] == [{"source": "0", "is_omitted": True}]
    assert len(read(stream.lineage(stream.version, "--store", stream.store_url))) == 1000


def test_offsets_of_other_sources_are_shown_as_they_are(start: Streams) -> None:
    stream = start("delta")
    stream.run("-", '{"at":"x y"}')
    stream.run("-", '{"at":"z"}')

    (found,) = stream.lineage(stream.version)["sources"]

    assert found == {"source": "1", "start": '{"at":"x y"}', "end": '{"at":"z"}'}


def test_a_query_can_record_no_offsets(start: Streams) -> None:
    stream = start("delta", lineage="false")
    stream.run(orders(15, 0))

    for where in ((), ("--store", stream.store_url)):
        assert stream.lineage(stream.version, *where)["sources"] == []


def test_lineage_is_shown_to_people(start: Streams) -> None:
    stream = start("delta")
    stream.run(orders(15, 0), "7")

    shown = Ended("lineage", stream.address, stream.version).out

    assert f"Version {stream.version} of {stream.address}" in shown
    assert f"Query {QUERY_ID}, batch 0" in shown
    assert ["0", "orders", "0", "10", "15"] in [line.split() for line in shown.splitlines()]
    assert "Source 1: from (the beginning) to 7" in shown
    assert "no batch of Penstock: CREATE TABLE" in Ended("lineage", stream.address, "0").out


def test_ranges_of_batches_become_one_unless_a_batch_is_left_out() -> None:
    """A partition that is new in a batch begins at its earliest offset, which Spark does not log."""
    first, second = SourceRange("0", orders(1), orders(5)), SourceRange("0", orders(5), orders(8, 3))
    later = SourceRange("0", orders(9, 3), orders(12, 3))

    merged = merged_ranges([(first,), (second,), (), (later,)])

    assert merged == (SourceRange("0", orders(1), orders(8, 3)), later)
    assert merged[0].lineage().partitions == (
        PartitionRange("orders", 0, 1, 8),
        PartitionRange("orders", 1, None, 3),
    )
    shown = tuple(one.lineage() for one in merged)
    assert of_history(history_text(merged)) == shown
    assert of_stored(stored(merged)) == merged


@pytest.mark.parametrize(
    "damaged", ["", "[]", "{", "[7]", '[{"source":"0","offsets":{"t":"x"}}]', "[" * 9999]
)
def test_damaged_lineage_is_no_lineage(damaged: str) -> None:
    assert of_history(damaged) == ()
    assert of_stored(damaged.encode()) == ()


def test_no_text_in_a_history_is_too_long() -> None:
    many = [SourceRange(str(number), "", "9" * 100) for number in range(1000)]
    assert len(history_text(many[:70])) <= HISTORY_CHARS_MAX
    assert of_history(history_text(many[:100]))[99] == SourceLineage("99", is_omitted=True)
    assert history_text(many) == ""
