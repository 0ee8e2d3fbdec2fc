"""Decides when a stream's prepared batches are delivered, and how failures are retried. Pure functions."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ..target import Committer
from .contract import Backlog, DeliveryState, Mergeable

MIB = 1024 * 1024
CLOCK_DIFFERENCE_S_MAX = 60.0
"""Largest assumed clock difference between two machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """Delivery options of a stream."""

    after_s: float = 60.0
    """A delivery is due once the oldest batch has waited this long,"""
    after_bytes: int = 128 * MIB
    """or this many bytes are pending,"""
    after_batches: int = 1000
    """or this many batches are pending, whichever comes first."""
    after_checkpoint: bool = False
    """Deliver a batch only after Spark's own commit log has it."""
    tries_max: int = 5
    """Tries of a batch that the table rejects, before the stream is parked."""
    retry_s: float = 1.0
    """Wait after the first failure. It doubles up to `retry_s_max`, with jitter."""
    retry_s_max: float = 60.0

    def wait_s(self, tries: int, rng: random.Random) -> float:
        """Wait after this many failures in a row: between half of the step and the whole step."""
        step = min(self.retry_s * 2.0 ** min(tries - 1, 30), self.retry_s_max)
        return step * rng.uniform(0.5, 1.0)


def policy_for(table: Committer, policy: DeliveryPolicy) -> DeliveryPolicy:
    """Without merging, there is no reason to wait for more batches."""
    return policy if isinstance(table, Mergeable) else replace(policy, after_batches=1)


def is_ahead(timestamp: datetime, now: datetime, longest_s: float) -> bool:
    """Return True if `moment` is in the future.

    Returns False if it is later than a correct clock can have set it, so that a temporarily wrong clock does
    not block a stream.

    Args:
        longest_s: maximum number of seconds that a process adds to its own time
    """
    return now < timestamp <= now + timedelta(seconds=longest_s + CLOCK_DIFFERENCE_S_MAX)


def is_put_off(state: DeliveryState, policy: DeliveryPolicy, now: datetime) -> bool:
    """Return True during the wait after a failed try."""
    return state.retry_at is not None and is_ahead(state.retry_at, now, policy.retry_s_max)


def due(backlog: Backlog, policy: DeliveryPolicy, now: datetime) -> str | None:
    """Return why a delivery is due; None if it is not due.

    Args:
        backlog: of the batches that may be delivered
    """
    if not backlog.batches or backlog.oldest_prepared_at is None:
        return None
    if backlog.batches >= policy.after_batches:
        return "batches"
    if backlog.size_bytes >= policy.after_bytes:
        return "bytes"
    # A timestamp too far in the future also counts: the driver's clock must have been wrong.
    age_s = (now - backlog.oldest_prepared_at).total_seconds()
    return "age" if age_s >= policy.after_s or -age_s > policy.after_s + CLOCK_DIFFERENCE_S_MAX else None
