"""Delivery statistics of a stream, from the records of its newest deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..committers.store.delivery_queries import DeliveryPhase, DeliveryRecord

DELIVERIES = 200
"""How many of the newest deliveries count."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles, in seconds."""

    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class DeliveryStatistics:
    """Statistics of the newest committed deliveries."""

    deliveries: int
    freshness: Quantiles | None
    """Time from the prepare of a delivery's oldest batch until its rows are readable."""
    event_freshness: Quantiles | None
    """Time from a delivery's oldest event until its rows are readable, if the query has `eventTime`."""
    rows_per_s: float | None
    last: DeliveryRecord | None


def statistics_of(records: Sequence[DeliveryRecord]) -> DeliveryStatistics:
    """Return the statistics.

    Args:
        records: newest first, as the store returns them
    """
    committed = [
        record
        for record in records
        if record.phase is DeliveryPhase.COMMITTED and record.finished_at is not None
    ]
    return DeliveryStatistics(
        deliveries=len(committed),
        freshness=quantiles([_seconds(record, record.oldest_prepared_at) for record in committed]),
        event_freshness=quantiles(
            [_seconds(one, one.oldest_event_at) for one in committed if one.oldest_event_at is not None]
        ),
        rows_per_s=_rate(committed),
        last=committed[0] if committed else None,
    )


def _seconds(record: DeliveryRecord, since: datetime) -> float:
    readable_at = record.finished_at or since
    return max((readable_at - since).total_seconds(), 0.0)


def quantiles(seconds: Sequence[float]) -> Quantiles | None:
    """Return the quantiles; None of no values."""
    if not seconds:
        return None
    ranked = sorted(seconds)
    return Quantiles(_rank(ranked, 50), _rank(ranked, 95))


def _rank(ranked: Sequence[float], percent: int) -> float:
    """Return a percentile by nearest rank."""
    return ranked[max(-(-percent * len(ranked) // 100) - 1, 0)]


def _rate(committed: Sequence[DeliveryRecord]) -> float | None:
    """Return rows per second, from the first prepare to the last commit."""
    if not committed:
        return None
    newest, oldest = committed[0].finished_at, min(record.oldest_prepared_at for record in committed)
    seconds = 0.0 if newest is None else (newest - oldest).total_seconds()
    return sum(record.rows for record in committed) / seconds if seconds > 0 else None
