"""The list of streams and all that is known of one of them, as `penstock ui` shows it.

The numbers are those of `penstock status`, `history` and `dead-letters`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ..committers.contract import ManifestRecord, StreamKey
from ..committers.errors import ConfigurationError, ManifestCorruptError
from ..committers.store.dead_letters import LetterCount
from ..committers.store.delivery_queries import DeliveryRecord
from ..committers.store.listing import Sort, StreamFilter, StreamList
from ..committers.store.operator_actions import OperatorAction
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..datasource.planning.moved_checkpoint import settings_here
from ..delivery.statistics import DELIVERIES, DeliveryStatistics, statistics_of
from ..delivery.stream_settings import StreamSettings
from .figures import BATCHES, Figures, figures, has_deliveries, of_batches
from .records import StreamRecord

PENDING_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Listed:
    """One stream of a list."""

    status: StreamStatus
    record: StreamRecord
    figures: Figures


@dataclass(frozen=True, slots=True)
class Overview:
    """A page of the streams of a store."""

    rows: Sequence[Listed]
    page: StreamList
    """With its sums."""


@dataclass(frozen=True, slots=True)
class Details:
    """All that the store knows of one stream."""

    status: StreamStatus
    record: StreamRecord
    figures: Figures
    statistics: DeliveryStatistics | None
    """None for a coupled stream."""
    batches: Sequence[ManifestRecord]
    """The newest, newest first."""
    deliveries: Sequence[DeliveryRecord]
    """Likewise."""
    pending: Sequence[ManifestRecord]
    """The oldest batches that wait, oldest first."""
    letters: Sequence[LetterCount]
    """In the store, by code."""
    actions: Sequence[OperatorAction]
    """What operators have done, newest first."""
    maintained: Mapping[str, datetime]
    """When each step was last done."""
    settings: StreamSettings | None
    """None if they are damaged."""
    others: Sequence[StreamKey]
    """The other targets of the query."""


def overview(store: SqlManifestStore, wanted: StreamFilter, sort: Sort, offset: int, limit: int) -> Overview:
    """Return a page of the streams of a store."""
    page = store.list_streams(wanted, sort, offset, limit)
    known = figures(store, page.streams)
    return Overview([Listed(one, StreamRecord.of(one), known[one.key]) for one in page.streams], page)


def find_stream(store: SqlManifestStore, key: StreamKey) -> StreamStatus:
    """Return a stream, with the place where its checkpoint is now.

    Raises:
        ConfigurationError: there is no such stream.
    """
    for found in store.streams(key=key):
        return replace(found, settings=settings_here(store, key))
    raise ConfigurationError(f"The store has no stream {key}. It may have been retired.")


def details(store: SqlManifestStore, key: StreamKey, limit: int) -> Details:
    """Return all that the store knows of a stream.

    Args:
        limit: number of batches and deliveries

    Raises:
        ConfigurationError: there is no such stream.
    """
    stream = find_stream(store, key)
    batches = store.history(key, max(limit, BATCHES))
    deliveries = store.deliveries.recent(key, max(limit, DELIVERIES))
    statistics = statistics_of(deliveries[:DELIVERIES]) if has_deliveries(stream) else None
    return Details(
        status=stream,
        record=StreamRecord.of(stream),
        figures=of_batches(batches[:BATCHES]) if statistics is None else Figures.of(statistics),
        statistics=statistics,
        batches=batches[:limit],
        deliveries=deliveries[:limit],
        pending=store.pending(key, PENDING_SHOWN),
        letters=store.dead_letters.counts(key),
        actions=store.deliveries.operator_actions(key)[::-1],
        maintained=store.maintenance.done(key),
        settings=_settings(stream),
        others=[one for one in store.streams_of(key.query_id) if one != key],
    )


def _settings(stream: StreamStatus) -> StreamSettings | None:
    try:
        return StreamSettings.parse(stream.settings)
    except ManifestCorruptError:
        return None
