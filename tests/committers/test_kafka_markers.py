"""Where markers are looked for, without a broker."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException

from penstock import RetryableError
from penstock.committers.kafka.brokers import Brokers
from penstock.committers.kafka.cluster import KafkaAddress, KafkaCluster
from penstock.committers.kafka.markers import MarkerReader

CLUSTER = KafkaCluster(KafkaAddress("127.0.0.1:1", "rows"), timeout_s=0.2)


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
