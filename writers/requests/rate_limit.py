"""How many entries may be in flight, learned from what the destination throttles."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from ...committers.errors import ConfigurationError

_MILD = 0.9
"""Factor after a single throttled request."""
_CALM_REQUESTS = 10
"""Throttling does not go on if as many requests have succeeded since, or two for each slot."""
_BAND = 0.08
"""How near to the limit that was throttled growth is slow, as a share of it."""
_PROBE_S = 10.0
"""How long the growth through half of the band takes."""
_PROBE_S_PER_TASK = 6.0
"""The same where many tasks do so, each of which has its refused request."""
_PROBE_MAX_S = 60.0
_STEP_MAX_S = 1.0
"""For more time than this between two requests, growth does not make up."""
_STEP_MAX = 0.25
"""Growth after one request, as a share of the limit."""
_FLOOR_BATCHES = 0.01
_SMOOTHING = 0.2
_PAUSE_MAX_S = 10.0
_LATE_S = 0.1
"""How late a request may start without a loss for the rate that is given."""


@dataclass(frozen=True, slots=True)
class Aimd:
    """Additive increase, multiplicative decrease: the figures of Flink's `AIMDScalingStrategy`."""

    increase_entries: float = 10
    """Added to the limit after a request that succeeded."""
    decrease_factor: float = 0.5
    """The limit is multiplied by it after throttling."""

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.increase_entries < math.inf:
            problems.append(f"increase_entries must be positive, not {self.increase_entries}.")
        if not 0 < self.decrease_factor < 1:
            problems.append(f"decrease_factor must be between 0 and 1, not {self.decrease_factor}.")
        if problems:
            raise ConfigurationError("Rate limit:\n  - " + "\n  - ".join(problems))


@dataclass(slots=True, eq=False)
class Permit:
    """One request's part of the limit."""

    started_at: float
    entries: int
    is_at_limit: bool
    """No further request could have been started at the same time."""


class Pace:
    """Entries a second at most, from the first call on: a token bucket that is empty at first, so that short
    tasks that follow each other do not exceed the rate either. It holds one batch, or 0.1 s of the rate.
    """

    def __init__(self, entries_s: float, batch_entries: int) -> None:
        self._entries_s, self._most = entries_s, max(float(batch_entries), entries_s * _LATE_S)
        self._saved = 0.0
        self._at: float | None = None

    def next_start(self, now: float, entries: int) -> float:
        """The earliest time for a request with so many entries."""
        if self._entries_s == math.inf:
            return now
        missing = min(entries, self._most) - self._saved_until(now)
        return now if missing <= 0 else now + missing / self._entries_s

    def start(self, now: float, entries: int) -> None:
        if self._entries_s < math.inf:
            self._saved = self._saved_until(now) - entries

    def _saved_until(self, now: float) -> float:
        elapsed_s = 0.0 if self._at is None else max(now - self._at, 0.0)
        self._at = now if self._at is None else max(now, self._at)
        self._saved = min(self._saved + elapsed_s * self._entries_s, self._most)
        return self._saved


class RateLimit:
    """Limits the requests in flight, and the entries in flight on average over time.

    The entries are limited by AIMD as in Flink's AsyncSinkWriter (FLIP-171). The limit starts with a fair
    share: the most that may be in flight, divided by the number of tasks that write to the destination. Four
    rules are added to Flink's, so that nearly all that the destination admits is used, and few requests are
    refused:

    - Requests stay full. While less than a batch may be in flight, full requests are sent with pauses
      between them, instead of small ones without: many services limit requests, not entries.
    - Of the requests that were in flight together, only one decreases the limit.
    - A single throttled request decreases it to 90 % only. It is multiplied by `decrease_factor` if
      throttling goes on after that.
    - Near the limit at which the destination throttled last (8 %), growth takes seconds: ten or more from one
      probe to the next. It is a matter of time and not of requests, so that tasks with few requests catch up
      with others. Below, `increase_entries` are added after each request, at most a quarter of the limit;
      above, the more the farther away.

    Requests that were sent below the limit do not increase it: they prove nothing. Pure state; the caller
    gives the time.

    A rate that is given is kept from the first request on, see `Pace`.
    """

    def __init__(
        self, aimd: Aimd, batch_entries: int, requests_max: int, tasks: int, entries_s_max: float = math.inf
    ) -> None:
        self._aimd = aimd
        self._pace = Pace(entries_s_max, batch_entries)
        self._batch_entries = batch_entries
        self._max = float(batch_entries * requests_max)
        self._min = batch_entries * _FLOOR_BATCHES
        self.limit_entries = max(self._max / max(tasks, 1), self._min)
        self._active = 0
        self._pauses: list[float] = []
        """Heap of times: until then, a finished request still occupies its slot."""
        self._latency_s = 0.0
        """Of requests without throttling, smoothed."""
        self._throttled_at = math.inf
        """The limit when the destination throttled last."""
        self._decreased_at = -math.inf
        self._successes = 0
        """Of requests that were started after the last decrease."""
        self._grown_at = 0.0
        """When the limit was last increased or decreased."""
        self._probe_s = min(max(_PROBE_S, _PROBE_S_PER_TASK * tasks), _PROBE_MAX_S)

    @property
    def _slots(self) -> int:
        """Requests that may be in flight."""
        return math.ceil(self.limit_entries / self._batch_entries)

    def next_start(self, now: float, entries: int = 1) -> float:
        """The earliest time for a request: `now`, later, or infinity until a request ends."""
        self._end_pauses(now)
        excess = self._active + len(self._pauses) - self._slots + 1
        if excess <= 0:
            return self._pace.next_start(now, entries)
        return heapq.nsmallest(excess, self._pauses)[-1] if excess <= len(self._pauses) else math.inf

    def start(self, now: float, entries: int) -> Permit:
        self._end_pauses(now)
        self._pace.start(now, entries)
        self._active += 1
        return Permit(now, entries, self._active + len(self._pauses) >= self._slots)

    def finish(self, permit: Permit, now: float, *, is_throttled: bool) -> None:
        """End a request, and learn from it."""
        self._active -= 1
        took_s = now - permit.started_at
        if is_throttled:
            self._decrease(permit, now)
        else:
            self._latency_s += (took_s - self._latency_s) * (_SMOOTHING if self._latency_s else 1.0)
            if permit.started_at >= self._decreased_at:
                self._successes += 1
            if permit.is_at_limit:
                self._increase(now)
        # A refusal can be much faster than a success.
        occupied_s = (self._latency_s or took_s) * self._slots * permit.entries / self.limit_entries
        if (pause_s := occupied_s - took_s) > 0 and self.limit_entries < self._max:
            heapq.heappush(self._pauses, now + min(pause_s, _PAUSE_MAX_S))

    def _end_pauses(self, now: float) -> None:
        while self._pauses and self._pauses[0] <= now:
            heapq.heappop(self._pauses)

    def _decrease(self, permit: Permit, now: float) -> None:
        if permit.started_at < self._decreased_at:
            return
        goes_on = self._successes < min(_CALM_REQUESTS, 2 * self._slots) and self._decreased_at > -math.inf
        factor = self._aimd.decrease_factor if goes_on else max(self._aimd.decrease_factor, _MILD)
        self._throttled_at = self.limit_entries
        self.limit_entries = max(self.limit_entries * factor, self._min)
        self._decreased_at, self._successes = now, 0
        self._grown_at = now

    def _increase(self, now: float) -> None:
        low, high = self._throttled_at * (1 - _BAND), self._throttled_at * (1 + _BAND)
        if low <= self.limit_entries < high:
            seconds = min(now - self._grown_at, _STEP_MAX_S)
            grown = self.limit_entries * (1 + _BAND * seconds / self._probe_s)
        else:
            share = _STEP_MAX
            if self.limit_entries >= high:
                share = min(share, (self.limit_entries / self._throttled_at - 1) * _STEP_MAX)
            grown = self.limit_entries + min(self._aimd.increase_entries, self.limit_entries * share)
            if self.limit_entries < low:
                grown = min(grown, low)
        self.limit_entries = min(grown, self._max)
        self._grown_at = now
