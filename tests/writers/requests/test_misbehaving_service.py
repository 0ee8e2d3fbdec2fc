"""A service that throttles, fails in part, loses requests and answers, and refuses: what must hold always."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import request_service
from tests.support.virtual_loop import in_virtual_time, run_virtually

from penstock.committers.errors import RetryableError
from penstock.writers.requests.entry import Entry
from penstock.writers.requests.limits import Limits
from penstock.writers.requests.results import (
    DELIVERED,
    Acknowledged,
    DeadLetter,
    Delivered,
    Failure,
    Fatal,
    Result,
    Retry,
    Split,
)
from penstock.writers.requests.retry_budget import RetryBudget
from penstock.writers.requests.sender import RequestSender

Kind: TypeAlias = Literal[
    "ok", "throttle", "part", "part throttled", "split", "not sent", "lost", "reset", "late", "fatal"
]
FAULTS: list[Kind] = [kind for kind in get_args(Kind) if kind != "fatal"]
TIMEOUT_S = 2.0
REFUSED = DeadLetter("400", "Bad.")


@dataclass(frozen=True)
class Step:
    """What happens to one request."""

    kind: Kind
    latency_s: float
    seed: int
    """Which entries fail."""


class MisbehavingService:
    """Checks each request as it is sent."""

    def __init__(self, course: Course) -> None:
        self._steps = list(course.steps)
        self._course = course
        self.done: dict[int, Acknowledged] = {}
        self.arrived: set[int] = set()
        self.in_flight: list[Sequence[Entry[int]]] = []
        self.is_ended = False
        self.violations: list[AssertionError] = []

    async def submit(self, entries: Sequence[Entry[int]]) -> Failure | Sequence[Result]:
        with self.noted():
            self._check(entries)
        step = self._steps.pop(0) if self._steps else Step("ok", 0.01, 0)
        self.in_flight.append(entries)
        try:
            return await self._answer(step, entries)
        finally:
            self.in_flight.remove(entries)

    async def close(self) -> None:
        assert not self.in_flight

    @contextmanager
    def noted(self) -> Iterator[None]:
        """The writer takes a failed assertion for an error of the client."""
        try:
            yield
        except AssertionError as violation:
            self.violations.append(violation)
            raise

    def _check(self, entries: Sequence[Entry[int]]) -> None:
        limits = self._course.limits
        assert not self.is_ended
        assert 1 <= len(entries) <= limits.batch_entries_max
        assert sum(entry.size_bytes for entry in entries) <= limits.batch_bytes_max
        assert len(self.in_flight) < limits.in_flight_requests_max
        flying = {entry.position for request in self.in_flight for entry in request}
        for entry in entries:
            assert entry.position not in self.done, "sent after it was acknowledged"
            assert entry.position not in flying, "sent twice at a time"
            assert entry.id == f"id-{entry.position}"
            if self._course.order_by_key and entry.key is not None:
                earlier = self._course.entries[: entry.position]
                waiting = [one for one in earlier if one.key == entry.key and one.position not in self.done]
                assert not waiting, "sent before an earlier one was done"

    async def _answer(self, step: Step, entries: Sequence[Entry[int]]) -> Failure | Sequence[Result]:
        await asyncio.sleep(step.latency_s)
        if step.kind == "throttle":
            return Retry("429", retry_after_s=step.seed % 3 or None, is_throttled=True)
        if step.kind == "not sent":
            raise ConnectionResetError("before the request")
        if step.kind == "fatal":
            return Fatal("401", "Check the token.")
        if step.kind == "split" and self._course.refused & {entry.position for entry in entries}:
            return Split(REFUSED.code, REFUSED.message)
        draws = random.Random(step.seed)
        fails = step.kind.startswith("part")
        results: list[Result] = []
        for entry in entries:
            if fails and draws.random() < 0.5:
                results.append(Retry("503", is_throttled=step.kind == "part throttled"))
            elif entry.position in self._course.refused:
                results.append(REFUSED)
            else:
                self.arrived.add(entry.position)
                results.append(DELIVERED)
        if step.kind == "lost":
            await asyncio.sleep(TIMEOUT_S * 100)
        if step.kind == "reset":
            raise ConnectionResetError("after the request")
        if step.kind == "late":
            await asyncio.sleep(TIMEOUT_S - step.latency_s)  # at the very time of the time-out
        return results


@dataclass(frozen=True)
class Course:
    """One history."""

    limits: Limits
    order_by_key: bool
    tasks: int
    steps: list[Step]
    entries: list[Entry[int]]
    chunks: list[tuple[int, float, bool]]
    """Entries of a call, the caller's own time after it, and whether it flushes."""
    refused: set[int]


@st.composite
def courses(draw: st.DrawFn, kinds: Sequence[Kind]) -> Course:
    batch = draw(st.integers(1, 5))
    batch_bytes = draw(st.integers(20, 60))
    limits = Limits(
        batch_entries_max=batch,
        batch_bytes_max=batch_bytes,
        in_flight_requests_max=draw(st.integers(1, 4)),
        buffered_entries_max=draw(st.integers(batch, 12)),
        buffered_bytes_max=draw(st.integers(batch_bytes, 150)),
        buffer_time_max_s=draw(st.sampled_from([0.001, 0.5, 30.0])),
        record_bytes_max=20,
        request_timeout_s=TIMEOUT_S,
    )
    step = st.builds(Step, st.sampled_from(kinds), st.sampled_from([0.0, 0.01, 0.5]), st.integers(0, 99))
    given_entries = draw(
        st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.integers(1, 20)), max_size=40)
    )
    chunk = st.tuples(st.integers(1, 20), st.sampled_from([0.0, 0.02, 1.0]), st.booleans())
    return Course(
        limits,
        order_by_key=draw(st.booleans()),
        tasks=draw(st.integers(1, 5)),
        steps=draw(st.lists(step, max_size=25)),
        entries=[request_service.entry(position, *one) for position, one in enumerate(given_entries)],
        chunks=draw(st.lists(chunk, min_size=1, max_size=8)),
        refused=draw(st.sets(st.integers(0, 40), max_size=5)),
    )


class Player:
    """The caller of one history, which checks what it can see."""

    def __init__(self, course: Course) -> None:
        self.course = course
        self.service = MisbehavingService(course)
        self.writer = RequestSender(
            self.service,
            course.limits,
            retries=RetryBudget(total_s=1e6),
            tasks=course.tasks,
            order_by_key=course.order_by_key,
            observer=self.observe,
            draw=random.Random(1).random,
        )

    def observe(self, done: Sequence[tuple[Entry[Any], Acknowledged]]) -> None:
        with self.service.noted():
            for entry, result in done:
                assert entry.position not in self.service.done, "acknowledged twice"
                self.service.done[entry.position] = result
            self.check_memory()

    def check_memory(self) -> None:
        """What the writer holds; the entries of the call itself are the caller's."""
        limits, counters = self.course.limits, self.writer.counters
        held = len(self.writer._progress._open)
        assert held <= limits.buffered_entries_max + limits.in_flight_entries_max
        in_flight_bytes = limits.in_flight_requests_max * limits.batch_bytes_max
        assert counters.buffered_bytes <= limits.buffered_bytes_max + in_flight_bytes

    def check_progress(self) -> None:
        done_up_to = self.writer.acknowledged_up_to
        count = 0 if done_up_to is None else done_up_to + 1
        assert set(range(count)) <= self.service.done.keys()
        assert count == len(self.course.entries) or count not in self.service.done

    async def play(self) -> None:
        """
        Raises:
            RetryableError: the service refuses everything.
        """
        rest = self.course.entries
        chunks = list(self.course.chunks)
        while rest:
            count, pause_s, flushes = chunks.pop(0) if chunks else (len(rest), 0.0, False)
            await self.writer.write(rest[:count])
            rest = rest[count:]
            self.check_memory()
            self.check_progress()
            if flushes:
                await self.writer.flush()
                assert not self.service.in_flight
                assert len(self.service.done) == len(self.course.entries) - len(rest)
            await asyncio.sleep(pause_s)
        await self.writer.flush()


@settings(max_examples=300, deadline=None)
@given(courses(FAULTS))
@in_virtual_time
async def test_each_entry_is_acknowledged_once_and_only_refused_ones_are_dead_letters(course: Course) -> None:
    player = Player(course)
    await player.play()
    service, writer = player.service, player.writer
    assert not service.in_flight
    positions = {entry.position for entry in course.entries}
    assert service.done.keys() == positions
    dead = {position for position, result in service.done.items() if result == REFUSED}
    assert dead == positions & course.refused
    delivered = {position for position, result in service.done.items() if isinstance(result, Delivered)}
    assert delivered == positions - dead
    assert delivered <= service.arrived
    assert writer.acknowledged_up_to == (len(positions) - 1 if positions else None)
    assert (writer.counters.in_flight, writer.counters.buffered) == (0, 0)
    assert not writer._progress._open
    await writer.close()


@settings(max_examples=300, deadline=None)
@given(courses([*FAULTS, "fatal"]), st.floats(0, 20))
def test_after_an_error_or_an_abort_nothing_is_sent_and_progress_is_true(
    course: Course, aborted_after_s: float
) -> None:
    async def main() -> None:
        player = Player(course)
        play = asyncio.ensure_future(player.play())
        await asyncio.wait([play], timeout=aborted_after_s)
        play.cancel()
        with suppress(asyncio.CancelledError, RetryableError):
            await play
        await player.writer.abort()
        assert not player.service.in_flight
        assert player.writer.counters.in_flight == 0
        player.service.is_ended = True
        player.check_progress()
        await asyncio.sleep(TIMEOUT_S * 1000)
        assert not player.service.violations

    run_virtually(main())
