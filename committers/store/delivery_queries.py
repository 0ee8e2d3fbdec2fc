"""SQL of deliveries and leases. Callers hold a transaction that has locked the stream's row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Row

from ..contract import AbortedBy, Batch, Manifest, ManifestState, StreamKey, seconds_between
from ..deliveries.contract import LEASE_S_MAX, Lease
from ..deliveries.policy import is_ahead
from ..errors import FencedError, RetryableError
from ..lineage import SourceRange, merged_ranges, of_stored
from . import manifest_queries, queries
from .tables import (
    IS_PREPARED,
    IS_UNFINISHED,
    contents,
    deliveries,
    leases,
    lineage,
    manifests,
    operator_actions,
    streams,
)


class DeliveryPhase(str, Enum):
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ABANDONED = "ABANDONED"


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """A delivery as recorded in the store, without its content."""

    delivery_id: int
    stream: StreamKey
    first_batch_id: int
    last_batch_id: int
    batches: int
    phase: DeliveryPhase
    trigger: str
    is_compacted: bool
    files: int
    rows: int
    size_bytes: int
    source_files: int
    """Files listed by the batches' own manifests."""
    source_bytes: int
    oldest_event_at: datetime | None
    oldest_prepared_at: datetime
    """When the oldest of its batches was prepared."""
    fence: int
    """Fence of the lease under which the delivery was prepared."""
    prepared_at: datetime
    finished_at: datetime | None
    table_version: int | None
    reason: str
    """Why the delivery was abandoned."""
    sources_removed_at: datetime | None

    @property
    def waited_s(self) -> float:
        """Seconds in which its oldest batch has waited for it."""
        return seconds_between(self.oldest_prepared_at, self.prepared_at) or 0.0

    @property
    def commit_s(self) -> float | None:
        """Seconds from its prepare to its commit; None if it is not committed."""
        is_committed = self.phase is DeliveryPhase.COMMITTED
        return seconds_between(self.prepared_at, self.finished_at) if is_committed else None


RECORDS = sa.select(*(column for column in deliveries.c if column is not deliveries.c.content))
"""Deliveries without their contents."""


def to_record(stream: StreamKey, row: Row[Any]) -> DeliveryRecord:
    same, phase = queries.fields_in(row, DeliveryRecord), DeliveryPhase(row.state)
    return DeliveryRecord(delivery_id=row.id, stream=stream, phase=phase, **same)


# Leases ---------------------------------------------------------------------------------------------


# Built once, see `manifest_queries`.
_FIND_LEASE = sa.select(leases).where(leases.c.stream_id == sa.bindparam("given_stream"))


def _put_lease(insert: Any) -> Any:
    statement = insert(leases)
    changed = {name: statement.excluded[name] for name in ("holder", "fence", "expires_at")}
    return statement.on_conflict_do_update(index_elements=["stream_id"], set_=changed)


_PUT_LEASE = {"sqlite": _put_lease(sqlite.insert), "postgresql": _put_lease(postgresql.insert)}


def find_lease(connection: Connection, stream_id: int) -> Row[Any] | None:
    return connection.execute(_FIND_LEASE, {"given_stream": stream_id}).one_or_none()


def is_held_by_another(row: Row[Any] | None, holder: str, now: datetime) -> bool:
    if row is None or row.holder == holder or row.expires_at is None:
        return False
    return is_ahead(row.expires_at, now, LEASE_S_MAX)


def put_lease(connection: Connection, stream_id: int, holder: str, fence: int, expires_at: datetime) -> None:
    values = {"stream_id": stream_id, "holder": holder, "fence": fence, "expires_at": expires_at}
    connection.execute(_PUT_LEASE[connection.dialect.name], values)


def release_lease(connection: Connection, stream_id: int, lease: Lease) -> None:
    is_ours = {"stream_id": stream_id, "holder": lease.holder, "fence": lease.fence}
    connection.execute(sa.update(leases).filter_by(**is_ours).values(expires_at=None))


def check_lease(connection: Connection, stream_id: int, lease: Lease) -> None:
    """Check that the lease is valid. An expired lease is valid as long as no other process has taken it.

    Raises:
        FencedError: another process holds the lease, or it was released.
    """
    row = find_lease(connection, stream_id)
    if row is not None and (row.holder, row.fence) == (lease.holder, lease.fence) and row.expires_at:
        return
    now_held = (
        f"{row.holder} holds it now" if row is not None and row.fence > lease.fence else "it was released"
    )
    raise FencedError(
        f"{lease.holder} no longer holds the lease on {lease.stream}: {now_held}. Nothing was written. No "
        "action is needed: the process that holds the lease delivers the stream."
    )


# Deliveries -----------------------------------------------------------------------------------------


def find_gap(
    connection: Connection,
    of_stream: sa.ColumnElement[bool],
    first: int,
    last: int,
    after: int | None = None,
) -> int | None:
    """Return the first batch up to `last` that was aborted to be replayed and is not prepared again; None if
    there is none.

    Batches that an operator has skipped or aborted do not count, nor do batches before the table's token.
    Reads no records of later batches unless there is a gap.

    Args:
        first: a PREPARED batch
        after: a batch before which there is no gap; None if not known
    """
    are_committed = sa.select(manifests.c.batch_id).where(
        of_stream, manifests.c.state == ManifestState.COMMITTED.value
    )
    newest_first = are_committed.order_by(manifests.c.batch_id.desc()).limit(1)
    if after is None:
        after = connection.scalar(newest_first.where(manifests.c.batch_id < first))
    query = sa.select(manifests.c.batch_id).where(
        of_stream,
        manifests.c.state == ManifestState.ABORTED.value,
        sa.func.coalesce(manifests.c.aborted_by, AbortedBy.REPLAY.value) == AbortedBy.REPLAY.value,
        manifests.c.batch_id > (-1 if after is None else after),
        manifests.c.batch_id <= last,
    )
    query = query.order_by(manifests.c.batch_id).limit(1)
    gap: int | None = connection.scalar(query)
    committed = None if gap is None else connection.scalar(newest_first)
    if gap is None or committed is None or committed < gap:
        return gap
    later: int | None = connection.scalar(query.where(manifests.c.batch_id > committed))
    return later


def check_deliverable(connection: Connection, stream_id: int, given: Sequence[Batch]) -> Sequence[Row[Any]]:
    """Return the records of the batches after checking that they can be delivered together.

    They must be PREPARED and in no delivery. No PREPARED batch and no batch that waits for its replay may be
    left out before the last one: every batch before the table's token counts as delivered.

    Raises:
        RetryableError: one of these conditions does not hold.
    """
    query = sa.select(manifests).where(manifests.c.stream_id == stream_id, IS_PREPARED)
    query = query.where(manifests.c.batch_id <= given[-1].batch_id)
    rows = connection.execute(query.order_by(manifests.c.batch_id)).all()
    if taken := [row for row in rows if row.delivery_id is not None]:
        raise RetryableError(
            f"Batch {taken[0].batch_id} of {given[0].stream} is part of the unfinished delivery "
            f"{taken[0].delivery_id}. The next round finishes that delivery first."
        )
    gap = find_gap(connection, manifests.c.stream_id == stream_id, given[0].batch_id, given[-1].batch_id)
    if gap is not None and gap < given[-1].batch_id:
        raise RetryableError(
            f"Batch {gap} of {given[0].stream} waits for its replay and must be delivered first. The next "
            "round checks again."
        )
    found = {row.batch_id: row.digest for row in rows}
    expected = {batch.batch_id: batch.digest for batch in given}
    if found != expected:
        other = min(batch_id for batch_id, _ in found.items() ^ expected.items())
        problem = (
            "is no longer pending" if other in expected else "is pending too and must be delivered first"
        )
        raise RetryableError(
            f"Batch {other} of {given[0].stream} {problem}: the stream has changed since the delivery of "
            f"batches {given[0].batch_id} to {given[-1].batch_id} was planned. The next round plans it "
            "again."
        )
    return rows


def put_delivery(
    connection: Connection,
    stream_id: int,
    manifest: Manifest,
    sources: Sequence[Row[Any]],
    now: datetime,
    **given: Any,
) -> int:
    """Insert a PREPARED delivery and assign its batches to it; return its id."""
    result = connection.execute(
        sa.insert(deliveries).values(
            stream_id=stream_id,
            first_batch_id=sources[0].batch_id,
            last_batch_id=manifest.batch.batch_id,
            digest=manifest.batch.digest,
            batches=len(sources),
            state=DeliveryPhase.PREPARED.value,
            source_files=sum(row.files for row in sources),
            source_bytes=sum(row.size_bytes for row in sources),
            oldest_prepared_at=min(row.prepared_at for row in sources),
            prepared_at=now,
            reason="",
            content_sha256=manifest.content_sha256,
            content=manifest.content,
            **queries.columns_of(manifest),
            **given,
        )
    )
    assert result.inserted_primary_key is not None
    delivery_id = int(result.inserted_primary_key[0])
    in_range = manifests.c.batch_id.between(sources[0].batch_id, manifest.batch.batch_id)
    are_its = (manifests.c.stream_id == stream_id, in_range, IS_PREPARED)
    connection.execute(sa.update(manifests).where(*are_its).values(delivery_id=delivery_id))
    return delivery_id


def find_unfinished(connection: Connection, stream_id: int) -> Row[Any] | None:
    query = sa.select(deliveries).where(deliveries.c.stream_id == stream_id, IS_UNFINISHED)
    return connection.execute(query).one_or_none()


def newest_of_each(stream_ids: Sequence[int], limit: int) -> sa.Select[Any]:
    """Select the newest deliveries of each of these streams, at most `limit` of each, newest first."""
    others = deliveries.alias()
    oldest = (
        sa.select(others.c.id)
        .where(others.c.stream_id == streams.c.id)
        .order_by(others.c.id.desc())
        .limit(1)
        .offset(limit - 1)
        .scalar_subquery()
    )
    of_stream = sa.and_(
        deliveries.c.stream_id == streams.c.id, deliveries.c.id >= sa.func.coalesce(oldest, 0)
    )
    chosen = RECORDS.select_from(streams).join(deliveries, of_stream).where(streams.c.id.in_(stream_ids))
    return chosen.order_by(deliveries.c.stream_id, deliveries.c.id.desc())


def batches_of(connection: Connection, stream: StreamKey, delivery: Row[Any]) -> tuple[Batch, ...]:
    """The batches of a delivery in any state, oldest first."""
    query = sa.select(manifests.c.batch_id, manifests.c.digest).where(*_in(delivery))
    rows = connection.execute(query.order_by(manifests.c.batch_id))
    return tuple(Batch(stream, row.batch_id, row.digest) for row in rows)


def read_by(connection: Connection, delivery: Row[Any]) -> tuple[SourceRange, ...]:
    """What the batches of a delivery have read."""
    is_of_batch = (lineage.c.stream_id == manifests.c.stream_id, lineage.c.batch_id == manifests.c.batch_id)
    query = sa.select(lineage.c.ranges).join(manifests, sa.and_(*is_of_batch)).where(*_in(delivery))
    found = connection.scalars(query.order_by(manifests.c.batch_id))
    return merged_ranges(map(of_stored, found))


def end_delivery(
    connection: Connection, stream_id: int, delivery_id: int, checksum: str, **values: Any
) -> Row[Any] | None:
    """Finish a PREPARED delivery (compare-and-set) and return its row; None if it was not PREPARED."""
    is_it = sa.and_(deliveries.c.id == delivery_id, deliveries.c.stream_id == stream_id)
    is_prepared = deliveries.c.state == DeliveryPhase.PREPARED.value
    is_same = (
        deliveries.c.content_sha256 == checksum
    )  # if the store was replaced, the id may belong to another delivery
    update = sa.update(deliveries).where(is_it, is_prepared, is_same).values(values)
    if connection.execute(update).rowcount != 1:
        return None
    return connection.execute(RECORDS.where(is_it)).one()


def commit_batches(connection: Connection, delivery: Row[Any], dropped_rows: int) -> None:
    """Mark the delivery's batches COMMITTED and count them, without the rows that were refused. Those that
    were marked individually are counted already. The dead letters are stored already.
    """
    are_pending = (*_in(delivery), IS_PREPARED)
    summed = (manifests.c.rows, manifests.c.size_bytes, manifest_queries.REFUSED)
    sums = (sa.func.count(), *map(sa.func.sum, summed))
    batches, rows, size_bytes, refused = connection.execute(sa.select(*sums).where(*are_pending)).one()
    committed_rows = int(rows or 0) - max(int(refused or 0), dropped_rows)
    added = {
        "committed_batches": streams.c.committed_batches + batches,
        "committed_rows": streams.c.committed_rows + max(committed_rows, 0),
        "committed_bytes": streams.c.committed_bytes + int(size_bytes or 0),
    }
    queries.update_stream(connection, delivery.stream_id, added)
    values = {
        "state": ManifestState.COMMITTED.value,
        "finished_at": delivery.finished_at,
        "table_version": delivery.table_version,
        "reason": "",
    }
    connection.execute(sa.update(manifests).where(*are_pending).values(values))


def free_batches(connection: Connection, delivery: Row[Any]) -> None:
    connection.execute(sa.update(manifests).where(*_in(delivery)).values(delivery_id=None))


def delete_contents(connection: Connection, delivery: Row[Any]) -> None:
    """Deletes the contents of the delivery's batches, not the content of the delivery."""
    ids = sa.select(manifests.c.batch_id).where(*_in(delivery))
    is_its = (contents.c.stream_id == delivery.stream_id, contents.c.batch_id.in_(ids))
    connection.execute(sa.delete(contents).where(*is_its))


def _in(delivery: Row[Any]) -> tuple[sa.ColumnElement[bool], ...]:
    """The range of batch ids comes first because the primary key covers it."""
    return (
        manifests.c.stream_id == delivery.stream_id,
        manifests.c.batch_id.between(delivery.first_batch_id, delivery.last_batch_id),
        manifests.c.delivery_id == delivery.id,
    )


# Operator actions -----------------------------------------------------------------------------------


def put_operator_actions(
    connection: Connection,
    stream_id: int,
    now: datetime,
    who: str,
    what: str,
    why: str,
    batch_ids: Sequence[int | None] = (None,),
) -> None:
    common = {"stream_id": stream_id, "at": now, "who": queries.storable(who), "what": what}
    rows = [{**common, "batch_id": batch_id, "why": queries.storable(why)} for batch_id in batch_ids]
    connection.execute(sa.insert(operator_actions), rows)
