"""Transactions whose producer fails, or does not come to an end, without a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock import RetryableError
from penstock.committers.errors import AccessRefusedError, SchemaMismatchError
from penstock.committers.kafka import transactions
from penstock.committers.kafka.cluster import KafkaCluster
from penstock.committers.kafka.records import Record
from penstock.committers.kafka.transactions import FencedSessionError, Session, TransactionSettings

RECORD: Record = ("rows", b"1", None, -1, 0, None)
TOO_SLOW = "was not sent within transactionTimeout"


class FailingProducer:
    """Does what some functions do in place of its methods."""

    def __init__(self, config: dict[str, Any], instead: dict[str, Callable[..., Any]]) -> None:
        self.error_cb = config["error_cb"]
        self._instead = instead

    def __getattr__(self, method: str) -> Callable[..., Any]:
        instead = self._instead.get(method)
        return lambda *given, **named: None if instead is None else instead(self, *given)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    def opened(timeout_s: float = 0.0, **instead: Callable[..., Any]) -> Session:
        monkeypatch.setattr(transactions, "_new_producer", lambda config: FailingProducer(config, instead))
        cluster = KafkaCluster("127.0.0.1:1", timeout_s=0.2)
        return Session(cluster, "key", TransactionSettings(timeout_s=timeout_s))

    return opened


def raising(error: BaseException) -> Callable[..., Any]:
    def method(*_: Any) -> Any:
        raise error

    return method


def sent(session: Session) -> None:
    session.start()
    session.send([RECORD])
    session.flush(lambda: None)


def test_a_transaction_that_takes_too_long_is_given_up(session: Callable[..., Session]) -> None:
    """Whether its rows are converted slowly, or the brokers take them slowly."""
    with pytest.raises(RetryableError, match=TOO_SLOW):
        sent(session())
    with pytest.raises(RetryableError, match=TOO_SLOW):
        sent(session(0.1, produce=raising(BufferError())))
    with pytest.raises(RetryableError, match=TOO_SLOW):
        sent(session(0.1, flush=lambda *_: 1))


def test_a_record_that_the_brokers_refuse_ends_the_transaction(session: Callable[..., Session]) -> None:
    def produce(_: FailingProducer, *given: Any) -> None:
        given[4](KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), None)

    with pytest.raises(SchemaMismatchError, match=r"max\.message\.bytes"):
        sent(session(60, produce=produce))


def test_brokers_that_deny_access_end_the_transaction(session: Callable[..., Session]) -> None:
    def flush(producer: FailingProducer, _: float) -> int:
        producer.error_cb(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
        return 0

    with pytest.raises(AccessRefusedError, match="TOPIC_AUTHORIZATION_FAILED"):
        sent(session(60, flush=flush))


def test_brokers_that_do_not_answer_are_not_awaited_for_ever(session: Callable[..., Session]) -> None:
    lost = KafkaException(KafkaError(KafkaError._TIMED_OUT, "lost", False, True))
    assert lost.args[0].retriable()
    with pytest.raises(RetryableError, match="_TIMED_OUT"):
        session(init_transactions=raising(lost)).begin(lambda: None)


def test_a_session_that_is_fenced_says_so(session: Callable[..., Session]) -> None:
    fenced = KafkaException(KafkaError(KafkaError._FENCED))
    with pytest.raises(FencedSessionError):
        session(init_transactions=raising(fenced)).begin(lambda: None)


def test_an_error_of_the_client_without_a_reason_is_its_own(session: Callable[..., Session]) -> None:
    within = KafkaException(KafkaError(KafkaError._STATE))
    with pytest.raises(SystemError, match="no reason"):
        session(begin_transaction=raising(within), init_transactions=raising(SystemError("no reason"))).begin(
            lambda: None
        )
