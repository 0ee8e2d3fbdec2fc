"""Which offsets a batch has read: from Spark's checkpoint into store and table, and how they are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import Ended
from tests.support.planned_stream import QUERY_ID, Stream, orders

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
