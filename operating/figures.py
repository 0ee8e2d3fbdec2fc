"""Freshness and throughput of streams, from the records of their newest deliveries or batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ..committers.contract import ManifestRecord, ManifestState, StreamKey
from ..committers.errors import ManifestCorruptError
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..delivery.statistics import DELIVERIES, DeliveryStatistics, Quantiles, quantiles, statistics_of
from ..delivery.stream_settings import StreamSettings

BATCHES = 50
"""How many of the newest batches of a coupled stream count."""


@dataclass(frozen=True, slots=True)
class Figures:
    """How fast a stream is."""

    freshness: Quantiles | None = None
    """Time from prepared to readable."""
    event_freshness: Quantiles | None = None
    """Time from event to readable."""
    rows_per_s: float | None = None

    @classmethod
    def of(cls, statistics: DeliveryStatistics) -> Figures:
        return cls(statistics.freshness, statistics.event_freshness, statistics.rows_per_s)


def delivery_statistics(
    store: SqlManifestStore, streams: Sequence[StreamStatus]
) -> Iterator[tuple[StreamStatus, DeliveryStatistics | None]]:
    """Yield each stream with statistics of its newest deliveries; None for a coupled stream."""
    decoupled = {stream.key for stream in streams if has_deliveries(stream)}
    known = {
        key: statistics_of(records) for key, records in store.deliveries.recent_of_each(decoupled, DELIVERIES)
    }
    for stream in streams:
        none = statistics_of(()) if stream.key in decoupled else None
        yield stream, known.get(stream.key, none)


def has_deliveries(stream: StreamStatus) -> bool:
    with suppress(ManifestCorruptError):  # the delivery process reports it; status shows the rest
        return StreamSettings.parse(stream.settings).is_decoupled
    return True


def figures(store: SqlManifestStore, streams: Sequence[StreamStatus]) -> Mapping[StreamKey, Figures]:
    """Return the figures of each stream: of its deliveries or, if it is coupled, of its batches."""
    found = {}
    for stream, statistics in delivery_statistics(store, streams):
        if statistics is None:
            found[stream.key] = of_batches(store.history(stream.key, BATCHES))
        else:
            found[stream.key] = Figures.of(statistics)
    return found


def of_batches(records: Sequence[ManifestRecord]) -> Figures:
    """Return the figures of a coupled stream.

    Args:
        records: newest first
    """
    committed = [
        (one.prepared_at, one.finished_at, one.rows)
        for one in records
        if one.state is ManifestState.COMMITTED and one.finished_at is not None
    ]
    if not committed:
        return Figures()
    waited = [
        max((readable_at - prepared_at).total_seconds(), 0.0) for prepared_at, readable_at, _ in committed
    ]
    lasted = (committed[0][1] - min(prepared_at for prepared_at, _, _ in committed)).total_seconds()
    rate = sum(rows for *_, rows in committed) / lasted if lasted > 0 else None
    return Figures(quantiles(waited), None, rate)
