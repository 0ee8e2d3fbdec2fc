"""Failed entries are sent again: which, in which order, when, and for how long."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.request_service import (
    LATENCY_S,
    NEVER,
    Answer,
    Observed,
    ScriptedService,
    entries,
    now,
    sender,
)
from tests.support.virtual_loop import VirtualClockLoop, in_virtual_time, run_virtually

from penstock.committers.errors import (
    AccessRefusedError,
    ConfigurationError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
)
from penstock.writers.requests.client import classify_error
from penstock.writers.requests.outages import WARNING_EVERY_S
from penstock.writers.requests.results import (
    DELIVERED,
    DeadLetter,
    Delivered,
    Dropped,
    Failure,
    Fatal,
    Result,
    Retry,
    Split,
)
from penstock.writers.requests.retry_after import parse_retry_after
from penstock.writers.requests.retry_budget import RetryBudget

BUSY = Retry("503", "Busy.")
FIRST_S = 0.1
NOW = datetime(2026, 11, 25, 8, 0, 0, tzinfo=timezone.utc)


def written(service: ScriptedService, count: int = 3, **settings: Any) -> float:
    """Write entries and flush; return the time that it took."""

    async def main() -> float:
        writer = sender(service, **settings)
        await writer.write(entries(count))
        await writer.flush()
        assert writer.acknowledged_up_to == count - 1
        return now()

    return run_virtually(main())


def test_only_failed_entries_are_sent_again_with_their_ids() -> None:
    service = ScriptedService([DELIVERED, BUSY, Dropped()])
    written(service)
    assert service.positions == [(0, 1, 2), (1,)]
    assert service.requests[1].ids == ("id-1",)


def test_an_outage_that_lasts_is_reported_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    written(ScriptedService(*[Retry("503", "Down.")] * 3), count=1, draw=lambda: 0.999)
    assert caplog.messages == []
    took_s = written(ScriptedService(*[Retry("503", "Down.")] * 14), count=1, draw=lambda: 0.999)
    assert 1 < len(caplog.messages) <= took_s / WARNING_EVERY_S + 1
    assert re.fullmatch(
        r"Entry id-0 has not been accepted for 1\d s \(8 attempts\): 503\. Down\. It is sent again\.",
        caplog.messages[0],
    )


def test_one_result_is_that_of_all_entries_of_the_request() -> None:
    service = ScriptedService(BUSY)
    written(service)
    assert service.positions == [(0, 1, 2), (0, 1, 2)]


@pytest.mark.parametrize("slower", [0, 1])
@in_virtual_time
async def test_failed_entries_return_to_the_front_in_their_order(slower: int) -> None:
    """Two requests fail, in either order, while other entries wait."""
    service = ScriptedService(
        BUSY, BUSY, NEVER, NEVER, latency_s=lambda number: LATENCY_S + 0.001 * (number == slower)
    )
    writer = sender(service, retries=RetryBudget(), draw=lambda: 0.0, in_flight_requests_max=2)
    await writer.write(entries(9))
    await asyncio.sleep(1)
    await writer.abort()
    first, second, *again = service.positions
    assert (first, second) == ((0, 1, 2), (3, 4, 5))
    # The first request that fails is sent again before the other one has failed.
    assert again == ([(3, 4, 5), (0, 1, 2)] if slower == 0 else [(0, 1, 2), (3, 4, 5)])


def test_failed_entries_are_sent_before_others_that_wait() -> None:
    service = ScriptedService([DELIVERED, BUSY, BUSY], latency_s=LATENCY_S)
    written(service, 7, in_flight_requests_max=1, draw=lambda: 0.0)
    assert service.positions == [(0, 1, 2), (1, 2, 3), (4, 5, 6)]


def test_other_entries_are_sent_while_failed_ones_wait() -> None:
    service = ScriptedService(BUSY)
    written(service, 6, in_flight_requests_max=1)
    assert service.positions == [(0, 1, 2), (3, 4, 5), (0, 1, 2)]


def test_the_back_off_doubles_up_to_its_maximum() -> None:
    service = ScriptedService(BUSY, BUSY, BUSY, BUSY)
    written(service, retries=RetryBudget(backoff_first_s=1.0, backoff_max_s=4.0), draw=lambda: 0.5)
    waits = [b - a - LATENCY_S for a, b in zip(service.times, service.times[1:], strict=False)]
    assert waits == pytest.approx([0.5, 1, 2, 2])


@given(attempts=st.integers(1, 10_000), draw=st.floats(0, 1, exclude_max=True))
def test_a_wait_is_between_zero_and_the_back_off(attempts: int, draw: float) -> None:
    budget = RetryBudget(backoff_first_s=0.1, backoff_max_s=20)
    delay_s = budget.delay_s(attempts, None, draw)
    assert delay_s == pytest.approx(draw * min(20, 0.1 * 2 ** min(attempts - 1, 100)))


def test_a_wait_that_the_destination_asks_for_is_kept() -> None:
    service = ScriptedService([Retry("429", retry_after_s=7), DELIVERED, BUSY])
    written(service)
    assert service.positions == [(0, 1, 2), (2,), (0,)]
    assert service.times[2] == pytest.approx(LATENCY_S + 7)


def test_a_wait_that_the_destination_asks_for_is_bounded() -> None:
    service = ScriptedService(Retry("503", retry_after_s=1e9))
    took_s = written(service, retries=RetryBudget(attempts_max=2, total_s=None, retry_after_max_s=60))
    assert took_s == pytest.approx(60 + 2 * LATENCY_S)


@pytest.mark.parametrize("on_exhausted", ["fail", "dead_letter"])
def test_attempts_are_limited(on_exhausted: str) -> None:
    service = ScriptedService([BUSY, DELIVERED, DELIVERED], BUSY, BUSY, BUSY)
    budget = RetryBudget(attempts_max=3, on_exhausted=on_exhausted)  # type: ignore[arg-type]
    observed = Observed()
    if on_exhausted == "fail":
        with pytest.raises(RetryableError, match=r"entry id-0: 503\. Not delivered in 3 attempts and 0\.3 s"):
            written(service, retries=budget, observer=observed)
        assert observed.positions == [1, 2]
    else:
        written(service, retries=budget, observer=observed)
        assert observed.positions == [1, 2, 0]
        message = "Not delivered in 3 attempts and 0.3 s. The last answer: Busy."
        assert observed.done[-1][1] == DeadLetter("503", message)
    assert service.positions == [(0, 1, 2), (0,), (0,)]


def test_the_time_of_an_entry_is_limited_and_no_wait_goes_beyond() -> None:
    """The destination asks for a wait of an hour: the entry gives up without it."""
    service = ScriptedService(BUSY, Retry("503", retry_after_s=3600))
    budget = RetryBudget(total_s=60)
    with pytest.raises(RetryableError, match="Not delivered in 2 attempts"):
        written(service, retries=budget)
    assert len(service.requests) == 2


def test_the_last_attempt_is_made_when_the_time_ends() -> None:
    """The jitter of the last wait ends no attempt before its time."""
    service = ScriptedService(*[BUSY] * 1000)
    with pytest.raises(RetryableError, match=r"Not delivered in \d+ attempts and 60\.\d s"):
        written(service, retries=RetryBudget(total_s=60))


def test_the_time_of_an_entry_starts_when_it_is_first_sent() -> None:
    """The last request waits 4.5 s for its turn, and still has its full second."""
    service = ScriptedService(*[DELIVERED] * 9, BUSY, latency_s=0.5)
    written(service, 30, in_flight_requests_max=1, buffered_entries_max=30, retries=RetryBudget(total_s=1.0))


@pytest.mark.parametrize(
    ("error", "is_retried"),
    [
        *[(kind("x"), True) for kind in (ConnectionResetError, BrokenPipeError, TimeoutError)],
        (asyncio.TimeoutError(), True),
        (asyncio.IncompleteReadError(b"", 7), True),
        (socket.gaierror(socket.EAI_AGAIN, "name"), True),
        (OSError(errno.EHOSTUNREACH, "No route to host"), True),
        (OSError(errno.EMFILE, "Too many open files"), False),
        (ValueError("a bug"), False),
        (KeyError("a bug"), False),
    ],
)
def test_connection_errors_and_time_outs_are_retried_and_all_else_is_fatal(
    error: Exception, is_retried: bool
) -> None:
    assert isinstance(classify_error(error), Retry if is_retried else Fatal)
    service = ScriptedService(error)
    if is_retried:
        written(service)
    else:
        with pytest.raises(RetryableError, match=f"{type(error).__name__}.*{error.args[-1]}"):
            written(service)


def test_an_error_of_ours_keeps_its_class() -> None:
    with pytest.raises(AccessRefusedError, match="no key"):
        written(ScriptedService(AccessRefusedError("no key")))


class ClassifyingService(ScriptedService):
    def classify(self, error: Exception) -> Failure:
        return BUSY if "later" in str(error) else Fatal("E7", "Broken.", SchemaMismatchError)


def test_a_client_can_classify_its_own_errors() -> None:
    service = ClassifyingService(ValueError("later"))
    written(service)
    assert len(service.requests) == 2
    with pytest.raises(SchemaMismatchError, match=r"did not accept entry id-0: E7\. Broken\."):
        written(ClassifyingService(ConnectionResetError()))


def test_an_error_acknowledges_nothing() -> None:
    class Lenient(ScriptedService):
        def classify(self, error: Exception) -> Any:
            return DELIVERED

    service = Lenient(ValueError())
    written(service)
    assert service.positions == [(0, 1, 2)] * 2


def test_an_error_while_classifying_stops_the_writer() -> None:
    class Confused(ScriptedService):
        def classify(self, error: Exception) -> Failure:
            raise ZeroDivisionError("confused")

    with pytest.raises(PenstockError, match="ZeroDivisionError: confused"):
        written(Confused(ValueError()))


def test_a_fatal_result_stops_the_writer_after_the_others_of_the_request_are_acknowledged() -> None:
    observed = Observed()
    fatal = Fatal("401", "Check the token.", AccessRefusedError)
    service = ScriptedService([DELIVERED, fatal, DELIVERED])
    with pytest.raises(AccessRefusedError, match=r"entry id-1: 401\. Check the token\."):
        written(service, 9, observer=observed, in_flight_requests_max=1)
    assert observed.positions == [0, 2]
    assert len(service.requests) == 1


@pytest.mark.parametrize("answer", [[DELIVERED], [DELIVERED] * 4, []])
def test_without_one_result_for_each_entry_all_are_sent_again(answer: Sequence[Result]) -> None:
    observed, service = Observed(), ScriptedService(answer)
    written(service, observer=observed)
    assert service.positions == [(0, 1, 2)] * 2
    assert observed.positions == [0, 1, 2]
    with pytest.raises(RetryableError, match=rf"Not delivered in 2 .* has {len(answer)} results for 3 rows"):
        written(ScriptedService(answer, answer), retries=RetryBudget(attempts_max=2))


# Requests refused as a whole --------------------------------------------------------------------------

BAD = Split("400", "Bad.")


class Strict(ScriptedService):
    """Refuses requests with a bad entry, and does not say which it is."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self._bad = set(bad)

    async def submit(self, entries: Any) -> Any:
        results = await super().submit(entries)
        return BAD if self._bad & {entry.position for entry in entries} else results


def test_only_the_bad_entries_of_a_refused_request_are_dead_letters() -> None:
    service = Strict(2, 7)
    observed = Observed()
    written(service, 16, batch_entries_max=8, buffered_entries_max=16, observer=observed)
    dead = [(position, result) for position, result in observed.done if result != DELIVERED]
    assert sorted(dead) == [(position, DeadLetter("400", "Bad.")) for position in (2, 7)]
    assert sorted(observed.positions) == list(range(16))
    sizes = [len(positions) for positions in service.positions]
    assert sorted(sizes, reverse=True) == [8, 8, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1]


def test_entries_of_a_refused_request_are_not_sent_together_with_others() -> None:
    service = Strict(1)
    written(service, 6, batch_entries_max=3, in_flight_requests_max=1)
    assert service.positions == [(0, 1, 2), (0, 1), (0,), (1,), (2,), (3, 4, 5)]


# Time-outs (FLIP-451) ---------------------------------------------------------------------------------


def test_a_request_without_a_response_is_sent_again_with_the_same_ids() -> None:
    service = ScriptedService(NEVER)
    took_s = written(service, request_timeout_s=10.0)
    assert took_s == pytest.approx(10 + FIRST_S / 2 + LATENCY_S)
    assert service.requests[0].ids == service.requests[1].ids
    assert (service.cancelled, service.in_flight_max) == (1, 1)


def test_a_time_out_stops_the_writer_if_configured() -> None:
    service = ScriptedService(NEVER)
    with pytest.raises(RetryableError, match=r"timeout\. No response within 10 s\."):
        written(service, request_timeout_s=10.0, fail_on_timeout=True)
    assert len(service.requests) == 1


def test_time_outs_use_up_the_retry_budget() -> None:
    answers: list[Answer] = [NEVER] * 9
    service = ScriptedService(*answers)
    with pytest.raises(RetryableError, match="Not delivered in 3 attempts and 3"):
        written(service, request_timeout_s=10.0, retries=RetryBudget(attempts_max=3))


def test_a_response_that_comes_with_the_cancellation_counts() -> None:
    class LastMoment(ScriptedService):
        async def submit(self, entries: Any) -> Sequence[Result]:
            self.requests.append(None)  # type: ignore[arg-type]
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return [DELIVERED] * len(entries)

    service = LastMoment()
    written(service)
    assert len(service.requests) == 1


def test_a_client_that_cancels_its_request_gets_it_again() -> None:
    class Cancelling(ScriptedService):
        async def submit(self, entries: Any) -> Any:
            if not self.requests:
                self.requests.append(None)  # type: ignore[arg-type]
                raise asyncio.CancelledError
            return await super().submit(entries)

    service = Cancelling()
    written(service)
    assert len(service.requests) == 2


# Values -----------------------------------------------------------------------------------------------


def test_retries_need_a_bound() -> None:
    with pytest.raises(ConfigurationError) as raised:
        RetryBudget(attempts_max=None, total_s=None, backoff_first_s=3, backoff_max_s=2)
    assert str(raised.value).splitlines()[1:] == [
        "  - attempts_max or total_s must be set: retries without an end are not allowed.",
        "  - backoff_first_s (3) must be positive, and at most backoff_max_s (2).",
    ]
    with pytest.raises(ConfigurationError, match="attempts_max must be at least 1"):
        RetryBudget(attempts_max=0)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        (" 0 ", 0),
        ("1.5", 1.5),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90),
        ("Wed, 25 Nov 2026 08:00:10 -0000", 10),
        ("Wednesday, 25-Nov-26 08:00:30 GMT", 30),  # RFC 850
        ("Wed, 25 Nov 2026 07:59:00 GMT", 0),
        *[(header, None) for header in ("-5", "nan", "inf", "soon", "", "0 NOV 0:0 2200000000", None)],
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, NOW) == seconds


@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, \d{1,9} Nov \d{1,9} \d{1,3}:\d{1,3}:\d{1,3} [+-]?\w{1,9}"))
def test_no_header_breaks_the_writer(header: str) -> None:
    seconds = parse_retry_after(header, NOW)
    assert seconds is None or seconds >= 0


def test_delivered_is_a_value() -> None:
    assert Delivered() == DELIVERED


@in_virtual_time
async def test_responses_that_wait_while_the_loop_is_blocked_are_no_time_outs() -> None:
    """As the observer does if the store does not answer: requests with a response are not sent again."""

    def observe(done: object) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        loop.advance(90.0)

    service = ScriptedService(latency_s=lambda number: 0.1 + number)
    writer = sender(service, observer=observe, request_timeout_s=10.0)
    await writer.write(entries(6))
    await writer.flush()
    assert service.positions == [(0, 1, 2), (3, 4, 5)]
    assert writer.counters.timed_out_requests == 0
    await writer.close()
