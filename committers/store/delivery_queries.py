"""The SQL of deliveries and leases. Everything here runs inside a transaction that holds the stream's row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Row

from ..contract import (
    AbortedBy,
    Batch,
    Manifest,
    ManifestState,
    StreamKey,
)
from ..deliveries.contract import LEASE_S_MAX, Lease
from ..deliveries.policy import is_ahead
from ..errors import FencedError, RetryableError
from . import queries
from .tables import (
    IS_PREPARED,
    IS_UNFINISHED,
    contents,
    deliveries,
    leases,
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
    """What the store knows of one delivery, without the content."""

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
    """Of the batches' own manifests."""
    source_bytes: int
    oldest_event_at: datetime | None
    oldest_prepared_at: datetime
    """When the oldest of its batches was prepared."""
    fence: int
    """Of the lease that it was prepared under."""
    prepared_at: datetime
    finished_at: datetime | None
    table_version: int | None
    reason: str
    """Why it was abandoned."""
    sources_removed_at: datetime | None


RECORDS = sa.select(
    *(column for column in deliveries.c if column is not deliveries.c.content),
)
"""Deliveries without their contents."""


def to_record(stream: StreamKey, row: Row[Any]) -> DeliveryRecord:
    return DeliveryRecord(
        delivery_id=row.id,
        stream=stream,
        first_batch_id=row.first_batch_id,
        last_batch_id=row.last_batch_id,
        batches=row.batches,
        phase=DeliveryPhase(row.state),
        trigger=row.trigger,
        is_compacted=row.is_compacted,
        files=row.files,
        rows=row.rows,
        size_bytes=row.size_bytes,
        source_files=row.source_files,
        source_bytes=row.source_bytes,
        oldest_event_at=row.oldest_event_at,
        oldest_prepared_at=row.oldest_prepared_at,
        fence=row.fence,
        prepared_at=row.prepared_at,
        finished_at=row.finished_at,
        table_version=row.table_version,
        reason=row.reason,
        sources_removed_at=row.sources_removed_at,
    )


# Leases ---------------------------------------------------------------------------------------------


def find_lease(connection: Connection, stream_id: int) -> Row[Any] | None:
    return connection.execute(sa.select(leases).where(leases.c.stream_id == stream_id)).one_or_none()


def is_held_by_another(row: Row[Any] | None, holder: str, now: datetime) -> bool:
    if row is None or row.holder == holder or row.expires_at is None:
        return False
    return is_ahead(row.expires_at, now, LEASE_S_MAX)


def put_lease(connection: Connection, stream_id: int, holder: str, fence: int, expires_at: datetime) -> None:
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    values = {"holder": holder, "fence": fence, "expires_at": expires_at}
    statement = insert(leases).values(stream_id=stream_id, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["stream_id"], set_=values))


def release_lease(connection: Connection, stream_id: int, lease: Lease) -> None:
    is_ours = (
        leases.c.stream_id == stream_id,
        leases.c.holder == lease.holder,
        leases.c.fence == lease.fence,
    )
    connection.execute(sa.update(leases).where(*is_ours).values(expires_at=None))


def check_lease(connection: Connection, stream_id: int, lease: Lease) -> None:
    """One that has expired, and that nobody has taken since, still holds.

    Raises:
        FencedError: another process has taken over, or the lease was released.
    """
    row = find_lease(connection, stream_id)
    if row is not None and (row.holder, row.fence) == (lease.holder, lease.fence) and row.expires_at:
        return
    now_held = (
        f"{row.holder} has it since" if row is not None and row.fence > lease.fence else "it was released"
    )
    raise FencedError(
        f"{lease.holder} does not hold the lease on {lease.stream} any more: {now_held}. "
        "Nothing was written, and nothing has to be done: whoever holds the lease delivers the stream."
    )


# Deliveries -----------------------------------------------------------------------------------------


def find_gap(connection: Connection, of_stream: sa.ColumnElement[bool]) -> int | None:
    """The first batch that was given up for its replay and is not prepared anew; None if there is none.

    What an operator has given up is none, nor is what the table has passed.
    """
    landed = sa.select(sa.func.max(manifests.c.batch_id)).where(
        of_stream, manifests.c.state == ManifestState.COMMITTED.value
    )
    query = sa.select(sa.func.min(manifests.c.batch_id)).where(
        of_stream,
        manifests.c.state == ManifestState.ABORTED.value,
        sa.func.coalesce(manifests.c.aborted_by, AbortedBy.REPLAY.value) == AbortedBy.REPLAY.value,
        manifests.c.batch_id > sa.func.coalesce(landed.scalar_subquery(), -1),
    )
    gap: int | None = connection.scalar(query)
    return gap


def check_deliverable(connection: Connection, stream_id: int, given: Sequence[Batch]) -> Sequence[Row[Any]]:
    """The records of the batches, all PREPARED and free, with no PREPARED batch before or between them, nor
    one that waits for its replay.

    That nothing is left out matters as much: the table's token will be past it, and whatever the token has
    passed counts as delivered.

    Raises:
        RetryableError: it is not so.
    """
    query = sa.select(manifests).where(manifests.c.stream_id == stream_id, IS_PREPARED)
    query = query.where(manifests.c.batch_id <= given[-1].batch_id)
    rows = connection.execute(query.order_by(manifests.c.batch_id)).all()
    if taken := [row for row in rows if row.delivery_id is not None]:
        raise RetryableError(
            f"Batch {taken[0].batch_id} of {given[0].stream} is part of delivery {taken[0].delivery_id}, "
            "which is not finished. It comes first; the next round goes on with it."
        )
    gap = find_gap(connection, manifests.c.stream_id == stream_id)
    if gap is not None and gap < given[-1].batch_id:
        raise RetryableError(
            f"Batch {gap} of {given[0].stream} was given up for its replay, and comes first. The next round "
            "looks anew."
        )
    found = {row.batch_id: row.digest for row in rows}
    wanted = {batch.batch_id: batch.digest for batch in given}
    if found != wanted:
        other = min(batch_id for batch_id, _ in found.items() ^ wanted.items())
        problem = "is not pending any more" if other in wanted else "is pending too, and comes first"
        raise RetryableError(
            f"Batch {other} of {given[0].stream} {problem}: the stream has changed since the delivery of "
            f"batches {given[0].batch_id} to {given[-1].batch_id} was planned. The next round looks anew."
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
    """Insert a delivery, PREPARED, and put its batches into it; its id."""
    result = connection.execute(
        sa.insert(deliveries).values(
            stream_id=stream_id,
            first_batch_id=sources[0].batch_id,
            last_batch_id=manifest.batch.batch_id,
            digest=manifest.batch.digest,
            batches=len(sources),
            state=DeliveryPhase.PREPARED.value,
            files=manifest.files,
            rows=manifest.rows,
            size_bytes=manifest.size_bytes,
            source_files=sum(row.files for row in sources),
            source_bytes=sum(row.size_bytes for row in sources),
            oldest_event_at=manifest.oldest_event_at,
            oldest_prepared_at=min(row.prepared_at for row in sources),
            prepared_at=now,
            reason="",
            kind=manifest.kind,
            version=manifest.version,
            is_empty=manifest.is_empty,
            content_sha256=manifest.content_sha256,
            content=manifest.content,
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


def batches_of(connection: Connection, stream: StreamKey, delivery: Row[Any]) -> tuple[Batch, ...]:
    """Whatever their state is, oldest first."""
    query = sa.select(manifests.c.batch_id, manifests.c.digest).where(*_in(delivery))
    rows = connection.execute(query.order_by(manifests.c.batch_id))
    return tuple(Batch(stream, row.batch_id, row.digest) for row in rows)


def end_delivery(
    connection: Connection, stream_id: int, delivery_id: int, checksum: str, **values: Any
) -> Row[Any] | None:
    """Compare-and-set of a PREPARED delivery; None if it was not so."""
    is_it = sa.and_(deliveries.c.id == delivery_id, deliveries.c.stream_id == stream_id)
    is_prepared = deliveries.c.state == DeliveryPhase.PREPARED.value
    is_same = deliveries.c.content_sha256 == checksum  # the id is another's if the store was replaced
    update = sa.update(deliveries).where(is_it, is_prepared, is_same).values(values)
    if connection.execute(update).rowcount != 1:
        return None
    return connection.execute(RECORDS.where(is_it)).one()


def commit_batches(connection: Connection, delivery: Row[Any]) -> None:
    """Mark the delivery's batches COMMITTED, and count them; but for those that were marked on their own."""
    are_pending = (*_in(delivery), IS_PREPARED)
    sums = (sa.func.count(), sa.func.sum(manifests.c.rows), sa.func.sum(manifests.c.size_bytes))
    batches, rows, size_bytes = connection.execute(sa.select(*sums).where(*are_pending)).one()
    added = {
        "committed_batches": streams.c.committed_batches + batches,
        "committed_rows": streams.c.committed_rows + int(rows or 0),
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
    """Of the delivery's batches, not its own."""
    ids = sa.select(manifests.c.batch_id).where(*_in(delivery))
    is_its = (contents.c.stream_id == delivery.stream_id, contents.c.batch_id.in_(ids))
    connection.execute(sa.delete(contents).where(*is_its))


def _in(delivery: Row[Any]) -> tuple[sa.ColumnElement[bool], ...]:
    """By the range of batch ids first, which the primary key finds."""
    return (
        manifests.c.stream_id == delivery.stream_id,
        manifests.c.batch_id.between(delivery.first_batch_id, delivery.last_batch_id),
        manifests.c.delivery_id == delivery.id,
    )


# Decisions ------------------------------------------------------------------------------------------


def put_operator_actions(
    connection: Connection,
    stream_id: int,
    now: datetime,
    who: str,
    what: str,
    why: str,
    batch_ids: Sequence[int | None] = (None,),
) -> None:
    said = {"stream_id": stream_id, "at": now, "who": queries.storable(who), "what": what}
    rows = [{**said, "batch_id": batch_id, "why": queries.storable(why)} for batch_id in batch_ids]
    connection.execute(sa.insert(operator_actions), rows)
