"""Where markers are looked for, without a broker."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from penstock import RetryableError, TableChangedError
from penstock.committers.kafka.brokers import Brokers
from penstock.committers.kafka.cluster import KafkaCluster
from penstock.committers.kafka.markers import Marker, MarkerReader

CLUSTER = KafkaCluster("127.0.0.1:1", timeout_s=0.2)


class AdminWithoutLeader:
    """What the client answers while a partition has no leader: no error, and no offset."""

    def poll(self, _: float) -> int:
        return 0

    def list_offsets(self, partitions: Any, **_: Any) -> dict[Any, Future[Any]]:
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=-1001))
        return dict.fromkeys(partitions, answer)


def test_a_partition_whose_end_is_not_known_is_not_taken_for_one_without_markers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batch would be sent again."""
    brokers = Brokers(CLUSTER)
    monkeypatch.setattr(Brokers, "_admin", AdminWithoutLeader())
    with pytest.raises(KafkaException, match="LEADER_NOT_AVAILABLE"):
        brokers.end("progress", 0)
    with pytest.raises(RetryableError, match="LEADER_NOT_AVAILABLE"):
        MarkerReader(CLUSTER, brokers).read("key")


MARKER = Marker("q1", "kafka://h:9092/rows", 3, "ab", 4, "c/t", split="2 by key", files={"3": "cd"})


def test_a_marker_of_one_part_is_as_before_there_were_parts() -> None:
    whole = replace(MARKER, split="", files={})
    fields = ("query", "address", "batch", "digest", "revision", "target", "version")
    assert tuple(json.loads(whole.encoded())) == fields
    for marker in (MARKER, whole):
        assert Marker.decode("key", "progress", marker.encoded()) == marker


@pytest.mark.parametrize(
    "wrong",
    [
        {"version": 2}, {"batch": "3"}, {"digest": None}, {"split": 1}, {"files": []}, {"other": 1},
        {"split": "2"}, {"split": "two by key"}, {"split": "1 by key"},
    ],
)  # fmt: skip
def test_a_record_that_is_no_marker_stops_the_query(wrong: dict[str, object]) -> None:
    record = {**json.loads(MARKER.encoded()), **wrong}
    with pytest.raises(TableChangedError, match="is not a marker of this version"):
        Marker.decode("key", "progress", json.dumps(record).encode())
