"""Deletes old records of batches, deliveries and runs, and all records of a stream that has ended for good.

Runs in the delivery process. For coupled queries it also runs after some commits. Without pruning the store
would grow for as long as the query runs. Pruned records are no longer needed to decide about rows: the
table's token covers them.
"""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..contract import AbortedBy, ManifestState, StreamKey
from . import queries
from .database import Database
from .delivery_queries import DeliveryPhase
from .tables import (
    IS_PREPARED,
    UtcDateTime,
    compactions,
    contents,
    dead_letters,
    deliveries,
    lineage,
    manifests,
    metadata,
    runs,
    streams,
)

BATCHES_AT_ONCE = 1000
"""Batches deleted in one transaction. A query that prepares a batch at the same time waits for it."""


def prune(
    database: Database, stream: StreamKey, older_than: datetime, keep: int, batches_max: int | None = None
) -> int:
    """Delete finished batches beyond the age and count limits; return how many were deleted.

    See `SqlDeliveries.prune` for the records that are always kept.
    """
    pruned = 0
    while batches_max is None or pruned < batches_max:
        with database.write() as connection:
            stream_id = queries.lock_stream(connection, stream)
            if stream_id is None:
                return pruned
            given = {"given_stream": stream_id, "given_time": older_than}
            counts = {"given_number": keep, "given_limit": BATCHES_AT_ONCE}
            batch_ids = list(connection.scalars(_PRUNABLE, {**given, **counts}))
            _delete_batches(connection, stream_id, batch_ids)
            if not batch_ids:
                connection.execute(_DELETE_DELIVERIES, given)
                connection.execute(_DELETE_RUNS, given)
                return pruned
        pruned += len(batch_ids)
    return pruned


# Built once: each stream is pruned every hour, also if nothing has changed, and building these statements
# costs as much as running them.
_STREAM = sa.bindparam("given_stream", type_=sa.Integer)
_BEFORE = sa.bindparam("given_time", type_=UtcDateTime)
_KEEP = sa.bindparam("given_number", type_=sa.BigInteger)
_LIMIT = sa.bindparam("given_limit", type_=sa.Integer)


def _is_unneeded() -> sa.ColumnElement[bool]:
    """True unless the batch is in an unfinished delivery or in one whose source files are not removed yet."""
    is_done = deliveries.c.state != DeliveryPhase.PREPARED.value
    has_no_sources = sa.or_(sa.not_(deliveries.c.is_compacted), deliveries.c.sources_removed_at.is_not(None))
    return sa.or_(deliveries.c.id.is_(None), sa.and_(is_done, has_no_sources))


def _has_letters() -> sa.ColumnElement[bool]:
    """True if dead letters of the batch wait for the dead-letter destination."""
    is_of_batch = (
        dead_letters.c.stream_id == manifests.c.stream_id,
        dead_letters.c.batch_id == manifests.c.batch_id,
    )
    waits = sa.exists().where(*is_of_batch)
    return sa.and_(manifests.c.state == ManifestState.COMMITTED.value, waits)


def _prunable() -> sa.Select[int]:
    is_of_stream = manifests.c.stream_id == _STREAM
    newest = sa.select(sa.func.max(manifests.c.batch_id)).where(is_of_stream).scalar_subquery()
    beyond = sa.select(manifests.c.batch_id).where(is_of_stream).order_by(manifests.c.batch_id.desc())
    first_beyond = beyond.offset(_KEEP).limit(1).scalar_subquery()
    is_done = manifests.c.state.in_((ManifestState.COMMITTED.value, ManifestState.ABORTED.value))
    is_skipped = sa.func.coalesce(manifests.c.aborted_by, "") == AbortedBy.SKIP.value  # kept for `status`
    is_old = sa.or_(manifests.c.finished_at < _BEFORE, manifests.c.batch_id <= first_beyond)
    query = sa.select(manifests.c.batch_id).select_from(
        manifests.outerjoin(deliveries, deliveries.c.id == manifests.c.delivery_id)
    )
    query = query.where(
        is_of_stream,
        is_done,
        is_old,
        sa.not_(is_skipped),
        manifests.c.batch_id < newest,
        _is_unneeded(),
        sa.not_(_has_letters()),
    )
    return query.order_by(manifests.c.batch_id).limit(_LIMIT)


def _delete_batches(connection: Connection, stream_id: int, batch_ids: list[int]) -> None:
    if not batch_ids:
        return
    for table in (contents, dead_letters, lineage, manifests):
        are_these = (table.c.stream_id == stream_id, table.c.batch_id.in_(batch_ids))
        connection.execute(sa.delete(table).where(*are_these))
    is_less = (streams.c.id == stream_id, streams.c.pruned_up_to < batch_ids[-1])
    connection.execute(sa.update(streams).where(*is_less).values(pruned_up_to=batch_ids[-1]))


def _delete_deliveries() -> sa.Delete:
    """Deletes deliveries that have no batches left, and abandoned ones by age."""
    has_batches = (
        sa.exists()
        .where(manifests.c.stream_id == deliveries.c.stream_id)
        .where(manifests.c.batch_id.between(deliveries.c.first_batch_id, deliveries.c.last_batch_id))
        .where(manifests.c.delivery_id == deliveries.c.id)
    )
    is_committed = deliveries.c.state == DeliveryPhase.COMMITTED.value
    is_abandoned = deliveries.c.state == DeliveryPhase.ABANDONED.value
    is_done = sa.or_(
        sa.and_(is_committed, sa.not_(has_batches)),
        sa.and_(is_abandoned, deliveries.c.finished_at < _BEFORE),
    )
    return sa.delete(deliveries).where(deliveries.c.stream_id == _STREAM, is_done)


def _delete_runs() -> sa.Delete:
    """Deletes runs that were superseded before the given time.

    The time of their own claim does not matter: a run superseded a minute ago may have claimed a year ago.
    """
    is_old = (runs.c.stream_id == _STREAM, runs.c.claimed_at < _BEFORE)
    successor = sa.select(sa.func.max(runs.c.fence)).where(*is_old).scalar_subquery()
    return sa.delete(runs).where(runs.c.stream_id == _STREAM, runs.c.fence < successor)


_PRUNABLE, _DELETE_DELIVERIES, _DELETE_RUNS = _prunable(), _delete_deliveries(), _delete_runs()


MERGED = "batches whose merged files are not deleted yet (the delivery process does so after an hour)"


def unfinished(connection: Connection, stream_id: int, *, but: str = "") -> list[str]:
    """Return what of the stream is not finished, each with its number, such as `3 undelivered batches`.

    Args:
        but: what may be unfinished
    """
    joined = manifests.outerjoin(deliveries, deliveries.c.id == manifests.c.delivery_id)
    batches = sa.select(sa.func.count()).select_from(joined).where(manifests.c.stream_id == stream_id)
    is_committed = manifests.c.state == ManifestState.COMMITTED.value
    counts = {
        "undelivered batches": batches.where(IS_PREPARED),
        "batches with dead letters that are not in their table": batches.where(_has_letters()),
        MERGED: (batches.where(is_committed, sa.not_(_is_unneeded()))),
        "compactions that are not in both tables yet": (
            sa.select(sa.func.count()).select_from(compactions).where(compactions.c.stream_id == stream_id)
        ),
    }
    found = ((connection.scalar(query) or 0, what) for what, query in counts.items())
    return [f"{number} {what}" for number, what in found if number and what != but]


def delete_stream(connection: Connection, stream_id: int) -> None:
    for table in reversed(metadata.sorted_tables):
        if "stream_id" in table.c:
            connection.execute(sa.delete(table).where(table.c.stream_id == stream_id))
    connection.execute(sa.delete(streams).where(streams.c.id == stream_id))
