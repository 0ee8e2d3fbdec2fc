"""A collector never fails a batch, and delays it for a bounded time."""

from __future__ import annotations

import logging
import threading

import pytest

from penstock.telemetry.sending import SLOW_S, Sender


def test_jobs_that_fail_are_logged_once_and_the_next_ones_run(caplog: pytest.LogCaptureFixture) -> None:
    sender, ran = Sender("Tests"), threading.Event()

    def fail() -> None:
        raise ConnectionError("https://me:geheim@collector refuses")

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            sender.put(fail)
        sender.put(ran.set)
        assert ran.wait(5)
    (logged,) = caplog.messages
    assert "Tests could not be sent: ConnectionError" in logged
    assert "geheim" not in logged


def test_jobs_are_dropped_once_too_many_wait(caplog: pytest.LogCaptureFixture) -> None:
    sender, running, go_on, ran = Sender("Tests", queue_max=2), threading.Event(), threading.Event(), []

    def wait() -> None:
        running.set()
        go_on.wait(5)

    sender.put(wait)
    running.wait(5)
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            sender.put(lambda number=number: ran.append(number))  # type: ignore[misc]
    assert "more than 2 wait" in caplog.text
    go_on.set()
    assert sender.wait(5)
    assert ran == [0, 1]


def test_a_slow_receiver_delays_one_batch_a_minute() -> None:
    now = [0.0]
    sender, go_on = Sender("Tests", clock=lambda: now[0]), threading.Event()
    sender.put(lambda: go_on.wait(30))
    assert not sender.wait(0.01)
    assert not sender.wait(60)  # it is known to be slow: a wait would see the job end
    now[0] = SLOW_S + 1
    go_on.set()
    assert sender.wait(5)


def test_nothing_is_waited_for_if_nothing_was_sent() -> None:
    assert Sender("Tests").wait(5)
    assert not [one for one in threading.enumerate() if one.name == "penstock Nothing"]
