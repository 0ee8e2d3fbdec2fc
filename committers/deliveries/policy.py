"""When a stream's prepared batches are delivered, and how failures are tried again. Pure decisions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from .contract import Backlog, DeliveryState

MIB = 1024 * 1024
CLOCK_DIFFERENCE_S_MAX = 60.0
"""How far the clocks of two machines may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """What a stream's options say about its deliveries."""

    after_s: float = 60.0
    """A delivery is due once the oldest batch has waited so long,"""
    after_bytes: int = 128 * MIB
    """or so many bytes wait,"""
    after_batches: int = 1000
    """or so many batches do, whichever comes first."""
    after_checkpoint: bool = False
    """Deliver a batch only once Spark's own commits log has it."""
    tries_max: int = 5
    """Tries of a batch that the table refuses, before it is parked."""
    retry_s: float = 1.0
    """The wait after a first failure; it doubles up to `retry_s_max`, with jitter."""
    retry_s_max: float = 60.0

    def wait_s(self, tries: int, rng: random.Random) -> float:
        """How long to wait after so many failures in a row: between a half and the whole of the step."""
        step = min(self.retry_s * 2.0 ** min(tries - 1, 30), self.retry_s_max)
        return step * rng.uniform(0.5, 1.0)


def is_ahead(moment: datetime, now: datetime, longest_s: float) -> bool:
    """True if `moment` is still to come.

    False also if it is later than a correct clock can have set it, so that a clock that was wrong for a while
    does not block a stream.

    Args:
        longest_s: how many seconds ahead of its own time a process sets it at most
    """
    return now < moment <= now + timedelta(seconds=longest_s + CLOCK_DIFFERENCE_S_MAX)


def is_put_off(state: DeliveryState, policy: DeliveryPolicy, now: datetime) -> bool:
    """True while the wait after a failed try lasts."""
    return state.retry_at is not None and is_ahead(state.retry_at, now, policy.retry_s_max)


def due(backlog: Backlog, policy: DeliveryPolicy, now: datetime) -> str | None:
    """Why a delivery is due; None if it is not.

    Args:
        backlog: of the batches that may be delivered
    """
    if not backlog.batches or backlog.oldest_prepared_at is None:
        return None
    if backlog.batches >= policy.after_batches:
        return "batches"
    if backlog.size_bytes >= policy.after_bytes:
        return "bytes"
    # Also if it was prepared so far in the future that the driver's clock must have been wrong.
    age_s = (now - backlog.oldest_prepared_at).total_seconds()
    return "age" if age_s >= policy.after_s or -age_s > policy.after_s + CLOCK_DIFFERENCE_S_MAX else None
