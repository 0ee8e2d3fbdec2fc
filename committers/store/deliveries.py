"""Deliveries in the store: who may deliver a stream, what is on its way into the table, how it is going.

Runs in the delivery process, the command line and, for the backlog, on the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import sqlalchemy as sa

from ..contract import (
    Manifest,
    ManifestRecord,
    StreamKey,
)
from ..deliveries.contract import Backlog, Delivery, DeliveryState, Lease
from ..errors import CommitStateUnknownError, ManifestCorruptError
from . import contents, delivery_queries, pruning, queries
from .delivery_queries import DeliveryPhase, DeliveryRecord
from .operator_actions import SqlOperatorActions
from .tables import IS_PREPARED, IS_UNFINISHED, deliveries, leases, manifests, streams


class SqlDeliveries(SqlOperatorActions):
    """`DeliveryStore` on SQLite and Postgres, and the decisions of operators.

    Every method is one short database transaction that takes the lock on the stream's row first, unless it
    says otherwise. Any may raise `RetryableError` when the database does not answer, or does not know the
    stream; those that write may raise `CommitStateUnknownError` when the answer to its COMMIT got lost.
    """

    # Leases -----------------------------------------------------------------------------------------

    def acquire(self, stream: StreamKey, holder: str, seconds: float) -> Lease | None:
        """The lease if nobody else holds it, or the one who did let it expire; None otherwise.

        Whoever holds it already keeps its fence, and the time counts anew.

        Time is that of this process's clock. If the clocks of two processes differ, both may hold the lease
        for a while: the one with the lower fence is refused by the store, and of two commits the table takes
        one. So clocks that are wrong cost work, and neither rows nor order. A lease that ends later than
        the longest one could counts as expired.
        """
        query = sa.select(leases).join(streams).where(queries.is_stream(stream))
        with self._database.read() as connection:  # the usual case of a standby, without a lock
            row = connection.execute(query).one_or_none()
        if delivery_queries.is_held_by_another(row, holder, self._clock()):
            return None
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            row = delivery_queries.find_lease(connection, stream_id)
            if delivery_queries.is_held_by_another(row, holder, now):
                return None
            is_kept = row is not None and row.holder == holder and row.expires_at is not None
            fence = 0 if row is None else row.fence
            lease = Lease(stream, holder, fence if is_kept else fence + 1, now + timedelta(seconds=seconds))
            delivery_queries.put_lease(connection, stream_id, holder, lease.fence, lease.expires_at)
        return lease

    def renew(self, lease: Lease, seconds: float) -> Lease:
        """The lease, to expire later. One that has expired is renewed too, if nobody has taken it.

        Raises:
            FencedError: another process holds the stream now, or the lease was released.
        """
        with self._database.write() as connection:
            stream_id = self._lock(connection, lease.stream)
            delivery_queries.check_lease(connection, stream_id, lease)
            renewed = replace(lease, expires_at=self._clock() + timedelta(seconds=seconds))
            delivery_queries.put_lease(connection, stream_id, lease.holder, lease.fence, renewed.expires_at)
        return renewed

    def release(self, lease: Lease) -> None:
        """Let others have it at once. Idempotent; nothing happens if it is lost already."""
        with self._database.write() as connection:
            stream_id = queries.lock_stream(connection, lease.stream)
            if stream_id is not None:
                delivery_queries.release_lease(connection, stream_id, lease)

    # Deliveries -------------------------------------------------------------------------------------

    def prepare(self, lease: Lease, manifest: Manifest, trigger: str, *, is_compacted: bool) -> Delivery:
        """Make a delivery durable before its commit.

        Raises:
            FencedError: another process holds the stream now.
            RetryableError: one of its batches is not PREPARED any more, or part of another delivery; or it
                leaves out a PREPARED batch that comes before its last one.
        """
        if manifest.batches[-1] != manifest.batch or manifest.batch.stream != lease.stream:
            raise ValueError("a delivery is of batches of the lease's stream, and is named after the last")
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, lease.stream), self._clock()
            delivery_queries.check_lease(connection, stream_id, lease)
            sources = delivery_queries.check_deliverable(connection, stream_id, manifest.batches)
            given = {"trigger": trigger, "is_compacted": is_compacted, "fence": lease.fence}
            delivery_id = delivery_queries.put_delivery(
                connection, stream_id, manifest, sources, now, **given
            )
        whole = replace(manifest, merged=manifest.batches)
        return Delivery(delivery_id, whole, trigger, is_compacted, now)

    def unfinished(self, stream: StreamKey) -> Delivery | None:
        """The stream's delivery that was prepared, and neither finished nor abandoned. There is one at most.

        Raises:
            ManifestCorruptError: the content, or the list of batches, is not what was written.
        """
        query = sa.select(deliveries.c.id).where(queries.is_delivery_of(stream), IS_UNFINISHED)
        with self._database.read() as connection:  # the usual case: none
            if connection.scalar(query) is None:
                return None
        with self._database.write() as connection:  # for its lock: the delivery and its batches as they fit
            stream_id = self._lock(connection, stream)
            row = delivery_queries.find_unfinished(connection, stream_id)
            if row is None:
                return None
            batches = delivery_queries.batches_of(connection, stream, row)
        if len(batches) != row.batches:
            raise ManifestCorruptError(
                f"Delivery {row.id} of the stream {stream} in the store {self._database.name} is damaged: "
                f"{len(batches)} of its {row.batches} batches are there. Restore the store from a backup."
            )
        manifest = contents.checked_delivery(self._database, stream, row, batches)
        return Delivery(row.id, manifest, row.trigger, row.is_compacted, row.prepared_at)

    def finish(self, delivery: Delivery, table_version: int | None) -> bool:
        """The table holds the delivery: it and its batches are COMMITTED. False if it was not PREPARED.

        Raises:
            CommitStateUnknownError: the database failed, when the table may hold the delivery already.
                Nothing may be deleted; the next round finds the delivery unfinished, and the table tells.
        """
        manifest = delivery.manifest
        with self._database.write(unless_committed=CommitStateUnknownError) as connection:
            values = {"state": DeliveryPhase.COMMITTED.value, "table_version": table_version}
            ended = self._ended(connection, delivery, values)
            if ended is None:
                return False
            delivery_queries.commit_batches(connection, ended)
            if table_version is not None:
                known = {"table_version": table_version, "table_batch_id": manifest.batch.batch_id}
                queries.update_stream(connection, ended.stream_id, known)
        return True

    def abandon(self, delivery: Delivery, reason: str) -> bool:
        """Its batches are free for another delivery. False if it was not PREPARED."""
        with self._database.write() as connection:
            values = {"state": DeliveryPhase.ABANDONED.value, "reason": queries.storable(reason)}
            ended = self._ended(connection, delivery, values)
            if ended is None:
                return False
            delivery_queries.free_batches(connection, ended)
        return True

    def _ended(
        self, connection: sa.Connection, delivery: Delivery, values: Mapping[str, object]
    ) -> sa.Row[tuple[object, ...]] | None:
        """The delivery after it was PREPARED; None if it was not."""
        stream_id = queries.lock_stream(connection, delivery.manifest.batch.stream)
        if stream_id is None:
            return None
        checksum, now = delivery.manifest.content_sha256, self._clock()
        return delivery_queries.end_delivery(
            connection, stream_id, delivery.delivery_id, checksum, finished_at=now, **values
        )

    # How it is going --------------------------------------------------------------------------------

    def state(self, stream: StreamKey) -> DeliveryState:
        with self._database.read() as connection:
            row = connection.execute(sa.select(streams).where(queries.is_stream(stream))).one_or_none()
        return DeliveryState() if row is None else queries.to_delivery_state(row)

    def set_state(self, lease: Lease, state: DeliveryState) -> None:
        """Note how it is going, and park the stream if the state says so. Only `retry` ends that.

        Raises:
            FencedError: another process holds the stream now.
        """
        values = {
            "tries": state.tries,
            "retry_at": state.retry_at,
            "error": queries.storable(state.error),
            "isolate_until": state.isolate_until,
        }
        parked = {
            "parked_at": state.parked_at,
            "parked_by": queries.storable(state.parked_by),
            "parked_why": queries.storable(state.parked_why),
        }
        with self._database.write() as connection:
            stream_id = self._lock(connection, lease.stream)
            delivery_queries.check_lease(connection, stream_id, lease)
            queries.update_stream(connection, stream_id, values)
            if state.parked_at is not None:  # an operator may have parked it meanwhile
                is_free = (streams.c.id == stream_id, streams.c.parked_at.is_(None))
                connection.execute(sa.update(streams).where(*is_free).values(parked))

    def backlog(self, stream: StreamKey, before: int | None = None) -> Backlog:
        """All PREPARED batches, or those before a batch, also those in an unfinished delivery. No lock."""
        chosen = queries.of_stream(stream)
        if before is not None:
            chosen = sa.and_(chosen, manifests.c.batch_id < before)
        with self._database.read() as connection:
            return queries.backlog(connection, chosen)

    def wait(self, stream: StreamKey, since: datetime | None) -> None:
        """Show that the query waits for its backlog to shrink; None: that it goes on."""
        with self._database.write() as connection:
            stream_id = self._lock(connection, stream)
            queries.update_stream(connection, stream_id, {"waiting_since": since})

    def deliverable(self, stream: StreamKey) -> Sequence[ManifestRecord]:
        """PREPARED batches in no delivery, in ascending order, up to one that waits for its replay.

        Without a lock.
        """
        is_free = (queries.of_stream(stream), IS_PREPARED, manifests.c.delivery_id.is_(None))
        query = sa.select(manifests).where(*is_free).order_by(manifests.c.batch_id)
        with self._database.read() as connection:
            gap = delivery_queries.find_gap(connection, queries.of_stream(stream))
            rows = connection.execute(query).all()
        return [queries.to_record(stream, row) for row in rows if gap is None or row.batch_id < gap]

    def recent(self, stream: StreamKey, limit: int) -> Sequence[DeliveryRecord]:
        """The newest deliveries, whatever became of them, newest first. Without a lock."""
        query = delivery_queries.RECORDS.where(queries.is_delivery_of(stream))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(deliveries.c.id.desc()).limit(limit)).all()
        return [delivery_queries.to_record(stream, row) for row in rows]

    # What is left to clean up -----------------------------------------------------------------------

    def with_sources(self, stream: StreamKey) -> Sequence[DeliveryRecord]:
        """COMMITTED deliveries that replaced files that are not removed yet, oldest first. Without a lock."""
        has_sources = (deliveries.c.is_compacted, deliveries.c.sources_removed_at.is_(None))
        is_committed = deliveries.c.state == DeliveryPhase.COMMITTED.value
        query = delivery_queries.RECORDS.where(queries.is_delivery_of(stream), is_committed, *has_sources)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(deliveries.c.id)).all()
        return [delivery_queries.to_record(stream, row) for row in rows]

    def sources(self, delivery: DeliveryRecord) -> Iterator[Manifest]:
        """The own manifests of a delivery's batches, oldest first, until their sources are removed.

        One in memory, and no transaction held between two.

        Raises:
            ManifestCorruptError: the content is not what was written.
        """
        return contents.of_delivery(self._database, delivery)

    def manifest(self, delivery: DeliveryRecord) -> Manifest | None:
        """What the delivery commits, with `merged` left empty; None if it was pruned. Without a lock.

        Raises:
            ManifestCorruptError: the content is not what was written.
        """
        query = sa.select(deliveries).where(deliveries.c.id == delivery.delivery_id)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else contents.checked_delivery(self._database, delivery.stream, row)

    def sources_removed(self, delivery_id: int) -> None:
        """The files that the delivery has replaced are gone: forget the contents that name them. Idempotent.

        Nothing happens to a delivery that is not COMMITTED, or has replaced nothing.
        """
        is_it = (deliveries.c.id == delivery_id, deliveries.c.is_compacted)
        is_due = (
            deliveries.c.state == DeliveryPhase.COMMITTED.value,
            deliveries.c.sources_removed_at.is_(None),
        )
        with self._database.write() as connection:
            queries.lock_stream_of_delivery(connection, delivery_id)
            row = connection.execute(delivery_queries.RECORDS.where(*is_it, *is_due)).one_or_none()
            if row is None:
                return
            update = sa.update(deliveries).where(deliveries.c.id == delivery_id)
            connection.execute(update.values(sources_removed_at=self._clock()))
            delivery_queries.delete_contents(connection, row)

    def prune(
        self, stream: StreamKey, older_than: datetime, keep: int, batches_max: int | None = None
    ) -> int:
        """Forget batches finished before `older_than`, and all but the newest `keep`; how many went.

        Whichever of the two comes first: a busy stream keeps `keep` records, a quiet one those of a while.
        Their deliveries go with them, abandoned ones and taken-over runs by their age; a run that comes back
        after that is taken for a new one. What stays in any case: PREPARED batches, the newest record of the
        stream, unfinished deliveries, and those whose sources are not removed, with their batches.

        In several transactions, each of them short, and none needed by the next.

        Args:
            batches_max: end once so many have gone, about; None for no bound
        """
        return pruning.prune(self._database, stream, older_than, keep, batches_max)
