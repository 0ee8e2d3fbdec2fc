"""A service for requests that answers by a script, and what it has seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from penstock.writers.requests.entry import Entry
from penstock.writers.requests.limits import Limits
from penstock.writers.requests.results import DELIVERED, Acknowledged, Failure, Result
from penstock.writers.requests.sender import RequestSender

NEVER: Final = "never"
"""An answer that does not come."""

Answer: TypeAlias = "Result | Sequence[Result] | Exception | str"

LATENCY_S = 0.05


@dataclass(frozen=True)
class Seen:
    """One request."""

    at: float
    positions: tuple[int, ...]
    ids: tuple[str, ...]


class ScriptedService:
    """The client of a service that answers its requests in turn, and delivers all after the last answer.

    An answer that acknowledges does so for each entry.
    """

    def __init__(self, *answers: Answer, latency_s: float | Callable[[int], float] = LATENCY_S) -> None:
        """
        Args:
            latency_s: of all requests, or of the request of this number
        """
        self._answers = list(answers)
        self._latency_s = latency_s
        self.requests: list[Seen] = []
        self.in_flight = 0
        self.in_flight_max = 0
        self.cancelled = 0
        self.closed = 0

    async def submit(self, entries: Sequence[Entry[Any]]) -> Failure | Sequence[Result]:
        number = len(self.requests)
        seen = Seen(now(), tuple(one.position for one in entries), tuple(one.id for one in entries))
        self.requests.append(seen)
        answer = self._answers[number] if number < len(self._answers) else DELIVERED
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            if answer is NEVER:
                await asyncio.Event().wait()
            latency_s = self._latency_s
            await asyncio.sleep(latency_s if isinstance(latency_s, float) else latency_s(number))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1
        if isinstance(answer, Exception):
            raise answer
        assert not isinstance(answer, str)
        return [answer] * len(entries) if isinstance(answer, Acknowledged) else answer

    async def close(self) -> None:
        self.closed += 1

    @property
    def positions(self) -> list[tuple[int, ...]]:
        """Of the entries of each request."""
        return [seen.positions for seen in self.requests]

    @property
    def times(self) -> list[float]:
        return [round(seen.at, 6) for seen in self.requests]


class Observed:
    """What an observer was told."""

    def __init__(self) -> None:
        self.done: list[tuple[int, Acknowledged]] = []

    def __call__(self, done: Sequence[tuple[Entry[Any], Acknowledged]]) -> None:
        self.done += [(entry.position, result) for entry, result in done]

    @property
    def positions(self) -> list[int]:
        return [position for position, _ in self.done]


def now() -> float:
    return asyncio.get_running_loop().time()


def entry(position: int, key: Hashable = None, size_bytes: int = 10) -> Entry[int]:
    return Entry(position, size_bytes, f"id-{position}", position, key)


def entries(count: int, start: int = 0, size_bytes: int = 10) -> list[Entry[int]]:
    return [entry(position, size_bytes=size_bytes) for position in range(start, start + count)]


def keyed(keys: str) -> list[Entry[int]]:
    """An entry for each letter, which is its key."""
    return [entry(position, key) for position, key in enumerate(keys)]


def limits(**changed: Any) -> Limits:
    """Small ones: three entries a request, two requests at a time."""
    return Limits(
        **{
            "batch_entries_max": 3,
            "batch_bytes_max": 1000,
            "in_flight_requests_max": 2,
            "buffered_entries_max": 12,
            "buffered_bytes_max": 10_000,
            "buffer_time_max_s": 1.0,
            "record_bytes_max": 100,
            "request_timeout_s": 10.0,
            **changed,
        }
    )


LIMITS = frozenset(Limits.__dataclass_fields__)


def sender(service: ScriptedService, **settings: Any) -> RequestSender[int]:
    """A sender with small limits; each wait before a retry is half of the back-off."""
    changed = {name: settings.pop(name) for name in LIMITS & settings.keys()}
    settings.setdefault("draw", lambda: 0.5)
    return RequestSender(service, limits(**changed), **settings)
