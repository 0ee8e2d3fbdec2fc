"""What becomes of each entry of a request that has ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from .acknowledgements import result_of_each
from .buffer import Queued
from .entry import Entry
from .results import DELIVERED, Acknowledged, DeadLetter, Failure, Fatal, Result, Retry, Split
from .retry_budget import RetryBudget

PayloadT = TypeVar("PayloadT")


@dataclass(slots=True)
class Settlement(Generic[PayloadT]):
    """Each entry is in one of the first three."""

    done: list[Queued[PayloadT]] = field(default_factory=list)
    put_back: list[tuple[Queued[PayloadT], float]] = field(default_factory=list)
    """With the time from which the entry can be sent again."""
    refused: list[tuple[Entry[PayloadT], Fatal]] = field(default_factory=list)
    acknowledged: list[tuple[Entry[PayloadT], Acknowledged]] = field(default_factory=list)
    """The results of `done`."""
    throttled: int = 0
    """Entries that the destination refused because of its load."""
    retry: Retry | None = None
    """Why an entry is put back."""


def settle(
    request: Sequence[Queued[PayloadT]],
    results: Failure | Sequence[Result],
    *,
    started_at: float,
    now: float,
    draw: float,
    retries: RetryBudget,
) -> Settlement[PayloadT]:
    """Decide on all entries of a request.

    Args:
        results: of the client, see `result_of_each`
        started_at: when the request was sent
        draw: random number in [0, 1) for the back-off of all of them: they can be sent together again
    """
    of_each = result_of_each(results, len(request))
    if all(result is DELIVERED for result in of_each):
        return Settlement(list(request), acknowledged=[(queued.entry, DELIVERED) for queued in request])
    settlement: Settlement[PayloadT] = Settlement()
    for queued, result in zip(request, of_each, strict=True):
        ending: Acknowledged | Fatal | float
        if isinstance(result, Retry):
            settlement.throttled += result.is_throttled
            settlement.retry = result
            queued.attempts += 1
            queued.first_sent_at = min(queued.first_sent_at, started_at)
            ending = _retried(queued, result, now, draw, retries)
        elif isinstance(result, Split):
            ending = _split(queued, result, len(request))
        else:
            ending = result
        if isinstance(ending, Fatal):
            settlement.refused.append((queued.entry, ending))
        elif isinstance(ending, (int, float)):
            settlement.put_back.append((queued, ending))
        else:
            settlement.done.append(queued)
            settlement.acknowledged.append((queued.entry, ending))
    return settlement


def _retried(
    queued: Queued[PayloadT], result: Retry, now: float, draw: float, retries: RetryBudget
) -> DeadLetter | Fatal | float:
    """The time of the next attempt, or the result of an entry that has none left."""
    elapsed_s = now - queued.first_sent_at
    delay_s = retries.delay_s(queued.attempts, result.retry_after_s, draw, elapsed_s)
    if retries.is_exhausted(queued.attempts, elapsed_s, delay_s):
        return retries.exhausted(result, queued.attempts, elapsed_s)
    return now + delay_s


def _split(queued: Queued[PayloadT], result: Split, entries: int) -> DeadLetter | float:
    """At once in a request of half as many entries; a single entry is a dead letter."""
    if entries == 1:
        return DeadLetter(result.code, result.message)
    queued.together_max = (entries + 1) // 2
    return -math.inf
