"""Where markers are looked for, without a broker."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock import RetryableError, TableChangedError
from penstock.committers.errors import AccessRefusedError
from penstock.committers.kafka import markers
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


class Polled:
    """A consumer that gets one record again and again, or nothing."""

    def __init__(self, code: int | None) -> None:
        error = None if code is None else KafkaError(code)
        self._record = error and SimpleNamespace(error=lambda: error, offset=lambda: 5)

    def poll(self, _: float) -> Any:
        return self._record

    def assign(self, _: object) -> None:
        pass

    def unassign(self) -> None:
        pass

    close = unassign


@pytest.mark.parametrize(
    ("code", "refused", "said"),
    [
        (None, RetryableError, "could not be read within 0.2 s"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, RetryableError, "could not be read within 0.2 s"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessRefusedError, "TOPIC_AUTHORIZATION_FAILED"),
    ],
)
def test_a_marker_that_cannot_be_read_is_not_awaited_for_ever(
    monkeypatch: pytest.MonkeyPatch, code: int | None, refused: type[Exception], said: str
) -> None:
    """No group is joined, so it does not matter what the user may do with one."""
    monkeypatch.setattr(Brokers, "end", lambda *_: 5)
    monkeypatch.setattr(Brokers, "reconnect", lambda _: None)
    monkeypatch.setattr(markers, "opened", lambda *_: Polled(code))
    with pytest.raises(refused, match=said):
        MarkerReader(CLUSTER, Brokers(CLUSTER)).read("key")


def test_the_end_of_a_partition_without_the_marker_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Brokers, "end", lambda *_: 5)
    monkeypatch.setattr(markers, "opened", lambda *_: Polled(KafkaError._PARTITION_EOF))
    assert MarkerReader(CLUSTER, Brokers(CLUSTER)).read("key") is None


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
