"""How the entries in flight follow what the destination throttles."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from tests.support.request_service import LATENCY_S, Answer, ScriptedService, entries, now, sender
from tests.support.virtual_loop import run_virtually

from penstock.committers.errors import ConfigurationError
from penstock.writers.requests.entry import Entry
from penstock.writers.requests.limits import Limits
from penstock.writers.requests.rate_limit import Aimd, RateLimit
from penstock.writers.requests.results import DELIVERED, Failure, Result, Retry
from penstock.writers.requests.sender import RequestSender

BATCH = 100
REQUESTS_MAX = 10
STEP = 10


def limit(tasks: int = 1) -> RateLimit:
    return RateLimit(Aimd(STEP, 0.5), BATCH, REQUESTS_MAX, tasks)


class Clock:
    """Requests of a second each, one after the other or together."""

    def __init__(self, rate: RateLimit) -> None:
        self.rate = rate
        self.now = 0.0

    def requests(self, throttled: Sequence[bool], idle_s: float = 1000) -> None:
        """All of them are in flight together. Afterwards, all pauses end."""
        permits = [self.rate.start(self.now, BATCH) for _ in throttled]
        self.now += 1
        for permit, is_throttled in zip(permits, throttled, strict=True):
            self.rate.finish(permit, self.now, is_throttled=is_throttled)
        self.now += idle_s

    def full(self, times: int, idle_s: float = 1000) -> None:
        """As many requests as may be in flight, and all succeed."""
        for _ in range(times):
            self.requests([False] * math.ceil(self.rate.limit_entries / BATCH), idle_s)


@pytest.mark.parametrize(("tasks", "entries"), [(1, 1000), (4, 250), (20, 50), (10_000, 1)])
def test_it_starts_with_a_fair_share_of_what_the_destination_admits(tasks: int, entries: float) -> None:
    assert limit(tasks).limit_entries == entries


def test_the_limit_grows_by_a_constant_with_each_success_up_to_the_most() -> None:
    rate = limit(tasks=4)
    clock = Clock(rate)
    clock.full(1)
    assert rate.limit_entries == 250 + STEP  # only the last of three had no room beside it
    clock.full(1000)
    assert rate.limit_entries == 1000


def test_requests_below_the_limit_prove_nothing() -> None:
    rate = limit(tasks=4)
    clock = Clock(rate)
    for _ in range(100):
        clock.requests([False])
    assert rate.limit_entries == 250


def test_one_throttled_request_decreases_the_limit_a_little() -> None:
    rate = limit()
    Clock(rate).requests([False] * 9 + [True])
    assert rate.limit_entries == 900


def test_requests_in_flight_together_decrease_the_limit_once() -> None:
    rate = limit()
    Clock(rate).requests([True] * 10)
    assert rate.limit_entries == 900


def test_the_limit_is_multiplied_by_the_factor_while_throttling_goes_on() -> None:
    rate = limit()
    clock = Clock(rate)
    seen = []
    for _ in range(4):
        clock.requests([True])
        seen.append(rate.limit_entries)
    assert seen == [900, 450, 225, 112.5]


def test_throttling_after_a_calm_time_is_a_single_event_again() -> None:
    rate = limit()
    clock = Clock(rate)
    clock.requests([True])
    clock.requests([True])
    assert rate.limit_entries == 450
    clock.full(2)
    before = rate.limit_entries
    clock.requests([True])
    assert rate.limit_entries == pytest.approx(before * 0.9)


def test_a_smaller_factor_than_the_mild_one_is_kept() -> None:
    rate = RateLimit(Aimd(STEP, 0.95), BATCH, REQUESTS_MAX, 1)
    clock = Clock(rate)
    clock.requests([True])
    clock.requests([True])
    assert rate.limit_entries == pytest.approx(1000 * 0.95 * 0.95)


def test_growth_is_fast_up_to_the_limit_that_was_throttled_and_slow_around_it() -> None:
    rate = limit()
    clock = Clock(rate)
    clock.requests([True])
    assert rate.limit_entries == 900
    clock.full(2)
    assert rate.limit_entries == 920
    clock.full(5, idle_s=0)
    assert 950 < rate.limit_entries < 970
    clock.full(6, idle_s=0)
    assert rate.limit_entries == 1000


def test_growth_is_slower_where_many_tasks_probe() -> None:
    grown = []
    for tasks in (1, 2, 5, 1000):
        rate = RateLimit(Aimd(STEP, 0.5), BATCH, REQUESTS_MAX * tasks, tasks)
        clock = Clock(rate)
        clock.requests([True])
        clock.full(2)
        clock.full(5, idle_s=0)
        grown.append(rate.limit_entries)
    assert grown[0] > grown[1] > grown[2] > grown[3] > 920


def test_a_long_time_between_requests_is_not_made_up_for() -> None:
    rate = limit()
    clock = Clock(rate)
    clock.requests([True])
    clock.full(3, idle_s=3600)
    assert rate.limit_entries < 930


def test_growth_beyond_the_limit_that_was_throttled_gets_faster() -> None:
    """It was half a batch: one request at a time."""
    rate = limit(tasks=20)
    clock = Clock(rate)
    clock.requests([True])
    seen = [rate.limit_entries]
    while rate.limit_entries < BATCH:
        clock.full(1)
        seen.append(rate.limit_entries)
    steps = [after - before for before, after in pairwise(seen) if before > 50 * 1.08]
    assert steps[0] < 1.2
    assert steps == sorted(steps)
    assert steps[-1] == STEP


def test_growth_is_fast_again_when_the_destination_admits_more() -> None:
    rate = limit(tasks=2)
    clock = Clock(rate)
    clock.requests([True])
    assert rate.limit_entries == 450
    clock.full(500)
    assert rate.limit_entries == 1000


def test_small_limits_grow_by_a_quarter_at_most() -> None:
    rate = limit(tasks=1000)
    clock = Clock(rate)
    clock.full(3)
    assert rate.limit_entries == pytest.approx(1.25**3)


def test_a_request_is_followed_by_a_pause_while_less_than_a_batch_may_be_in_flight() -> None:
    """A fifth of a batch on average: one second of five."""
    rate = limit(tasks=50)
    permit = rate.start(0, BATCH)
    assert rate.next_start(0.5) == math.inf
    rate.finish(permit, 1.0, is_throttled=False)
    assert rate.next_start(1.0) == pytest.approx(BATCH / rate.limit_entries)
    assert rate.next_start(5.0) == 5.0


def test_the_pause_after_a_fast_refusal_is_that_of_a_slow_success() -> None:
    rate = limit(tasks=50)
    rate.finish(rate.start(0, BATCH), 1.0, is_throttled=False)
    rate.finish(rate.start(100, BATCH), 100.001, is_throttled=True)
    assert rate.next_start(100.001) == pytest.approx(100 + BATCH / rate.limit_entries)


def test_a_pause_is_bounded() -> None:
    rate = limit(tasks=1000)
    rate.finish(rate.start(0, BATCH), 60.0, is_throttled=False)
    assert rate.next_start(60.0) == 70


def test_small_requests_make_no_pause() -> None:
    rate = limit(tasks=50)
    rate.finish(rate.start(0, 10), 1.0, is_throttled=False)
    assert rate.next_start(1.0) == 1.0


def test_an_idle_destination_gets_all_slots() -> None:
    rate = limit()
    for _ in range(REQUESTS_MAX):
        assert rate.next_start(0) == 0
        rate.start(0, BATCH)
    assert rate.next_start(0) == math.inf


def test_the_figures_are_checked() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Aimd(increase_entries=0, decrease_factor=1)
    assert len(str(raised.value).splitlines()) == 3


# With the writer --------------------------------------------------------------------------------------


def test_throttling_and_time_outs_let_fewer_entries_be_in_flight() -> None:
    busy = Retry("429", is_throttled=True)
    in_part: list[Result] = [DELIVERED, busy, DELIVERED]
    answers: list[tuple[Answer, bool]] = [(busy, True), (in_part, True), (Retry("500"), False)]
    for answer, decreases in answers:
        service = ScriptedService(answer)

        async def main(service: ScriptedService = service) -> float:
            writer = sender(service)
            await writer.write(entries(3))
            await asyncio.sleep(LATENCY_S * 1.01)
            in_flight_max = writer.counters.in_flight_max
            await writer.abort()
            return in_flight_max

        assert run_virtually(main()) == pytest.approx(6 * 0.9 if decreases else 6)

    async def timed_out() -> float:
        writer = sender(ScriptedService("never"), request_timeout_s=0.01)
        await writer.write(entries(3))
        await asyncio.sleep(0.02)
        in_flight_max = writer.counters.in_flight_max
        await writer.abort()
        return in_flight_max

    assert run_virtually(timed_out()) == pytest.approx(6 * 0.9)


class ThrottledService:
    """Admits requests by a token bucket, of entries or of requests, and refuses the others quickly."""

    def __init__(self, rate: float, burst: float, *, counts_requests: bool = False) -> None:
        self._rate, self._burst, self._counts_requests = rate, burst, counts_requests
        self._tokens, self._filled_at = burst, 0.0
        self.answers: list[tuple[float, bool]] = []

    async def submit(self, entries: Sequence[Entry[Any]]) -> Failure | Sequence[Result]:
        self._tokens = min(self._burst, self._tokens + (now() - self._filled_at) * self._rate)
        self._filled_at = now()
        cost = 1 if self._counts_requests else len(entries)
        is_admitted = self._tokens >= cost
        self.answers.append((now(), is_admitted))
        if not is_admitted:
            await asyncio.sleep(0.005)
            return Retry("429", is_throttled=True)
        self._tokens -= cost
        await asyncio.sleep(LATENCY_S)
        return [DELIVERED] * len(entries)

    async def close(self) -> None:
        pass


SETTLED_S, END_S = 20.0, 80.0


def delivered(service: ThrottledService, tasks: int, rate: float = math.inf) -> list[int]:
    """Entries by task, all of which write as fast as they can, once they have settled.

    Args:
        rate: entries a second that all tasks may send together
    """

    async def task(seed: int) -> int:
        writer = RequestSender(
            service,
            Limits(batch_entries_max=10, in_flight_requests_max=50, buffered_entries_max=100),
            tasks=tasks,
            entries_s_max=rate / tasks,
            draw=random.Random(seed).random,
        )
        position = before = 0
        while now() < END_S:
            await writer.write(entries(50, start=position))
            position += 50
            if now() < SETTLED_S:
                before = writer.counters.delivered
        count = writer.counters.delivered - before
        await writer.abort()
        return count

    async def main() -> list[int]:
        return await asyncio.gather(*(task(seed) for seed in range(tasks)))

    return run_virtually(main())


def refused_share(service: ThrottledService) -> float:
    settled = [is_admitted for at, is_admitted in service.answers if at >= SETTLED_S]
    return settled.count(False) / len(settled)


SERVICES = pytest.mark.parametrize(
    ("make", "rate"),
    [
        (lambda: ThrottledService(1000, 100), 1000),
        (lambda: ThrottledService(1000, 1000), 1000),
        (lambda: ThrottledService(30, 30, counts_requests=True), 300),
    ],
    ids=["entries", "bursts", "requests"],
)


@SERVICES
@pytest.mark.parametrize("tasks", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_tasks_learn_the_rate_and_share_it(
    make: Callable[[], ThrottledService], rate: float, tasks: int
) -> None:
    """They use 95 % of what is admitted, one request in a hundred is refused, and none gets less than half of
    its share.
    """
    service = make()
    counts = delivered(service, tasks)
    assert sum(counts) >= 0.95 * rate * (END_S - SETTLED_S)
    assert min(counts) >= sum(counts) / tasks / 2
    assert refused_share(service) <= 0.01


@SERVICES
@pytest.mark.parametrize("tasks", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_tasks_that_know_the_rate_share_it_equally(
    make: Callable[[], ThrottledService], rate: float, tasks: int
) -> None:
    service = make()
    counts = delivered(service, tasks, rate)
    fair = rate * (END_S - SETTLED_S) / tasks
    assert all(0.95 * fair <= count <= 1.05 * fair for count in counts)
    assert refused_share(service) <= 0.01


def test_the_pace_holds_from_the_first_request_on_and_idle_time_is_not_made_up_for() -> None:
    rate = RateLimit(Aimd(STEP, 0.5), BATCH, REQUESTS_MAX, 1, entries_s_max=50)
    assert rate.next_start(0, BATCH) == 2
    assert rate.next_start(0, 1) == pytest.approx(0.02)
    rate.start(2, BATCH)
    assert rate.next_start(2, BATCH) == 4
    assert rate.next_start(1000, BATCH) == 1000
    rate.start(1000, BATCH)
    assert rate.next_start(1000, BATCH) == 1002
