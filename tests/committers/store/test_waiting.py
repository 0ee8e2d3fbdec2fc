"""Calls of the manifest store wait for a database that does not answer, as long as an option says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from penstock.committers.errors import (
    AccessRefusedError,
    CommitStateUnknownError,
    FencedError,
    PenstockError,
    RetryableError,
    StoreFailedError,
    StoreUnreachableError,
)
from penstock.committers.store.waiting import PAUSE_S, Patience


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def patience(clock: Clock) -> Patience:
    return Patience(120, lambda: clock.now, clock.sleep)


def down(times: int, error: PenstockError) -> Callable[[], str]:
    return Mock(side_effect=[*[error] * times, "up"])


@pytest.mark.parametrize("error", [StoreFailedError("down"), StoreUnreachableError("down")])
def test_a_call_waits_until_the_database_answers(
    patience: Patience, clock: Clock, error: PenstockError, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert patience.call(down(100, error)) == "up"
    assert clock.now == 100 * PAUSE_S
    (message,) = caplog.messages
    assert message.startswith("The query waits up to 120 s (storeWaitSeconds) for the store")
    assert message.endswith("down")


def test_then_it_fails_with_what_the_database_said_last(patience: Patience, clock: Clock) -> None:
    with pytest.raises(StoreFailedError, match="down"):
        patience.call(down(1000, StoreFailedError("down")))
    assert clock.now == 120


@pytest.mark.parametrize("error", [RetryableError("busy"), AccessRefusedError("no"), FencedError("newer")])
def test_what_is_no_outage_is_raised_at_once(patience: Patience, clock: Clock, error: PenstockError) -> None:
    with pytest.raises(type(error)):
        patience.call(down(1, error))
    assert clock.now == 0


def test_a_commit_without_an_answer_is_asked_again(patience: Patience) -> None:
    assert patience.call(down(1, CommitStateUnknownError("?"))) == "up"


@pytest.mark.parametrize("then", [FencedError("newer"), StoreFailedError("down")])
def test_it_stays_unknown_whatever_later_attempts_say(patience: Patience, then: PenstockError) -> None:
    """The callers delete the files of a batch that certainly was not stored."""
    call = Mock(side_effect=[CommitStateUnknownError("first"), *[then] * 1000])
    with pytest.raises(CommitStateUnknownError, match="first"):
        patience.call(call)
