"""Requests that brokers refuse or do not answer, without a broker."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock import RetryableError
from penstock.committers.errors import AccessRefusedError
from penstock.committers.kafka.brokers import Brokers
from penstock.committers.kafka.cluster import PROGRESS_TOPIC, KafkaCluster

DENIED, BUSY = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.POLICY_VIOLATION
UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART


class FailingAdmin:
    """Answers each kind of request with the code of an error, or never."""

    def __init__(self, **codes: int | None) -> None:
        self._codes = codes

    def poll(self, _: float) -> int:
        return 0

    def __getattr__(self, request: str) -> Callable[..., dict[str, Future[Any]]]:
        answer: Future[Any] = Future()
        code = self._codes[request]
        if code is not None:
            answer.set_exception(KafkaException(KafkaError(code)))
        return lambda *_, **__: {"name": answer}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Brokers]:
    def brokers(**codes: int | None) -> Brokers:
        monkeypatch.setattr(Brokers, "_admin", FailingAdmin(**codes))
        return Brokers(KafkaCluster("127.0.0.1:1", timeout_s=0.2))

    return brokers


def test_only_an_unknown_topic_counts_as_one_that_does_not_exist(failing: Callable[..., Brokers]) -> None:
    """Otherwise the progress topic of a busy broker would be created again."""
    assert failing(describe_topics=UNKNOWN).topics(["name"]) == {}
    with pytest.raises(RetryableError, match="topics were not read"):
        failing(describe_topics=BUSY).topics(["name"])
    with pytest.raises(AccessRefusedError, match="topics were not read"):
        failing(describe_topics=DENIED).topics(["name"])


def test_a_broker_that_does_not_answer_is_not_awaited_for_ever(failing: Callable[..., Brokers]) -> None:
    with pytest.raises(RetryableError, match="_TIMED_OUT"):
        failing(describe_topics=None).topics(["name"])


def test_settings_that_this_user_may_not_read_are_not_known(failing: Callable[..., Brokers]) -> None:
    assert failing(describe_configs=DENIED).settings("name") == {}
    with pytest.raises(RetryableError, match="the settings of name were not read"):
        failing(describe_configs=BUSY).settings("name")


def test_a_progress_topic_that_cannot_be_created_is_an_error(failing: Callable[..., Brokers]) -> None:
    """Unless another process was faster."""
    failing(describe_topics=UNKNOWN, create_topics=KafkaError.TOPIC_ALREADY_EXISTS).check_progress_topic()
    with pytest.raises(AccessRefusedError, match=rf"kafka-topics\.sh --create --topic {PROGRESS_TOPIC}"):
        failing(describe_topics=UNKNOWN, create_topics=DENIED).check_progress_topic()
    with pytest.raises(RetryableError, match=f"The topic {PROGRESS_TOPIC} was not created"):
        failing(describe_topics=UNKNOWN, create_topics=BUSY).check_progress_topic()
