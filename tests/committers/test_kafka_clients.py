"""Sessions of a stream that do not begin at once, without a broker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock import RetryableError
from penstock.committers.kafka.brokers import Brokers
from penstock.committers.kafka.clients import Kafka
from penstock.committers.kafka.cluster import KafkaAddress, KafkaCluster
from penstock.committers.kafka.parts import StreamSession
from penstock.committers.kafka.transactions import FencedSessionError, TransactionSettings

ADDRESS = KafkaAddress.parse("kafka://127.0.0.1:1/rows")
LOST = KafkaError._TIMED_OUT


def begins(monkeypatch: pytest.MonkeyPatch, *outcomes: int | None) -> int:
    """Open a session whose attempts have these errors, and return the number of attempts; None: no error."""
    left = list(outcomes)

    def begin(_session: StreamSession, _next_batch: int | None) -> None:
        code = left.pop(0)
        if code is not None:
            raise KafkaException(KafkaError(code))

    monkeypatch.setattr(StreamSession, "begin", begin)
    monkeypatch.setattr(Brokers, "check_progress_topic", lambda _: None)
    with Kafka(KafkaCluster("127.0.0.1:1")).session(ADDRESS, "q1", TransactionSettings()):
        return len(outcomes) - len(left)


def test_a_session_reads_the_markers_again_if_it_is_not_known_whether_they_were_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert begins(monkeypatch, None) == 1
    assert begins(monkeypatch, LOST, None) == 2
    with pytest.raises(RetryableError, match="the marker was not replaced"):
        begins(monkeypatch, LOST, LOST)


@pytest.mark.parametrize("outcomes", [[KafkaError._FENCED, None], [LOST, KafkaError.PRODUCER_FENCED]])
def test_a_session_that_is_fenced_is_not_begun_again(
    monkeypatch: pytest.MonkeyPatch, outcomes: Sequence[int | None]
) -> None:
    with pytest.raises(FencedSessionError):
        begins(monkeypatch, *outcomes)
