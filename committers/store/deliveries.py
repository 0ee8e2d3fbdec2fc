"""Leases, deliveries and delivery state in the store.

Runs in the delivery process and the command line. The driver uses it for the backlog.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby, takewhile

import sqlalchemy as sa

from ..contract import (
    NO_LETTERS,
    Batch,
    DeadLetters,
    Manifest,
    ManifestRecord,
    StreamKey,
)
from ..deliveries.contract import BATCHES_READ, CONTENTS_BYTES_READ, Backlog, Delivery, DeliveryState, Lease
from ..errors import CommitStateUnknownError, ManifestCorruptError
from . import contents, delivery_queries, manifest_queries, pruning, queries
from .database import Clock, Database
from .delivery_queries import DeliveryPhase, DeliveryRecord
from .operator_actions import SqlOperatorActions
from .status import IDS_MAX
from .tables import IS_PREPARED, IS_UNFINISHED, deliveries, leases, manifests, streams
from .waiting import waits


@waits("backlog", "wait")
class SqlDeliveries(SqlOperatorActions):
    """`DeliveryStore` on SQLite and Postgres, including operator actions.

    Each method is one short database transaction that locks the stream's row first, unless its docstring says
    otherwise. Methods raise `RetryableError` if the database does not answer or does not know the stream.
    Methods that write raise `CommitStateUnknownError` if the database does not answer the COMMIT.

    Args:
        lease_clock: measures leases; None: see `Database.time`
    """

    def __init__(self, database: Database, clock: Clock, lease_clock: Clock | None = None) -> None:
        super().__init__(database, clock)
        self._lease_clock = lease_clock

    # Leases -----------------------------------------------------------------------------------------

    def acquire(self, stream: StreamKey, holder: str, seconds: float) -> Lease | None:
        """See `DeliveryStore`.

        A process that already holds the lease keeps its fence, and the lease is extended.

        Expiry is measured with the clock of the database server: the clocks of the processes may differ. If
        that clock is changed, two processes may hold the lease for a while. The store then rejects the one
        with the lower fence, and the table accepts only one of two commits. So a wrong clock costs work, but
        no rows and no ordering. A lease whose expiry is further away than the longest possible lease counts
        as expired.
        """
        query = sa.select(leases).join(streams).where(queries.is_stream(stream))
        with self._database.read() as connection:  # the usual case of a standby process: no lock needed
            row = connection.execute(query).one_or_none()
            if delivery_queries.is_held_by_another(row, holder, self._lease_time(connection)):
                return None
        with self._database.write() as connection:
            stream_id = self._lock(connection, stream)
            row, now = delivery_queries.find_lease(connection, stream_id), self._lease_time(connection)
            if delivery_queries.is_held_by_another(row, holder, now):
                return None
            is_kept = row is not None and row.holder == holder and row.expires_at is not None
            fence = 0 if row is None else row.fence
            lease = Lease(stream, holder, fence if is_kept else fence + 1, now + timedelta(seconds=seconds))
            delivery_queries.put_lease(connection, stream_id, holder, lease.fence, lease.expires_at)
        return lease

    def renew(self, lease: Lease, seconds: float) -> Lease:
        """Extend the lease. An expired lease is extended too, if no other process has taken it.

        Raises:
            FencedError: another process holds the lease, or it was released.
        """
        with self._database.write() as connection:
            stream_id = self._lock(connection, lease.stream)
            delivery_queries.check_lease(connection, stream_id, lease)
            renewed = replace(lease, expires_at=self._lease_time(connection) + timedelta(seconds=seconds))
            delivery_queries.put_lease(connection, stream_id, lease.holder, lease.fence, renewed.expires_at)
        return renewed

    def release(self, lease: Lease) -> None:
        """See `DeliveryStore`."""
        with self._database.write() as connection:
            stream_id = queries.lock_stream(connection, lease.stream)
            if stream_id is not None:
                delivery_queries.release_lease(connection, stream_id, lease)

    def _lease_time(self, connection: sa.Connection) -> datetime:
        if self._lease_clock is not None:
            return self._lease_clock()
        return self._database.time(connection, self._clock)

    # Deliveries -------------------------------------------------------------------------------------

    def prepare(self, lease: Lease, manifest: Manifest, trigger: str, *, is_compacted: bool) -> Delivery:
        """See `DeliveryStore`. Also raises `RetryableError` if the delivery leaves out a PREPARED batch."""
        if manifest.batches[-1] != manifest.batch or manifest.batch.stream != lease.stream:
            raise ValueError(
                "a delivery consists of batches of the lease's stream, and carries the id of the last batch"
            )
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
        """See `DeliveryStore`.

        Raises:
            ManifestCorruptError: the content or the list of batches is damaged.
        """
        query = sa.select(deliveries.c.id).where(queries.is_delivery_of(stream), IS_UNFINISHED)
        with self._database.read() as connection:  # the usual case: there is none
            if connection.scalar(query) is None:
                return None
        # The lock makes the delivery and its batches consistent.
        with self._database.write() as connection:
            stream_id = self._lock(connection, stream)
            row = delivery_queries.find_unfinished(connection, stream_id)
            if row is None:
                return None
            batches = delivery_queries.batches_of(connection, stream, row)
            read = delivery_queries.read_by(connection, row)
        if len(batches) != row.batches:
            raise ManifestCorruptError(
                f"Delivery {row.id} of the stream {stream} in the store {self._database.name} is damaged: "
                f"only {len(batches)} of its {row.batches} batches are recorded. Restore the store from a "
                "backup."
            )
        manifest = contents.checked_delivery(self._database, stream, row, batches, read)
        return Delivery(row.id, manifest, row.trigger, row.is_compacted, row.prepared_at)

    def finish(
        self,
        delivery: Delivery,
        table_version: int | None,
        dead_letters: DeadLetters = NO_LETTERS,
        dropped_rows: int = 0,
    ) -> bool:
        """See `DeliveryStore`."""
        manifest = delivery.manifest
        with self._database.write(unless_committed=CommitStateUnknownError) as connection:
            values = {"state": DeliveryPhase.COMMITTED.value, "table_version": table_version}
            ended = self._ended(connection, delivery, values)
            if ended is None:
                return False
            for batch_id, letters in dead_letters.items():
                manifest_queries.put_dead_letters(connection, ended.stream_id, batch_id, letters)
            delivery_queries.commit_batches(connection, ended, dropped_rows)
            if table_version is not None:
                known = {"table_version": table_version, "table_batch_id": manifest.batch.batch_id}
                queries.update_stream(connection, ended.stream_id, known)
        return True

    def abandon(self, lease: Lease, delivery: Delivery, reason: str) -> bool:
        """See `DeliveryStore`."""
        with self._database.write() as connection:
            delivery_queries.check_lease(connection, self._lock(connection, lease.stream), lease)
            values = {"state": DeliveryPhase.ABANDONED.value, "reason": queries.storable(reason)}
            ended = self._ended(connection, delivery, values)
            if ended is None:
                return False
            delivery_queries.free_batches(connection, ended)
        return True

    def _ended(
        self, connection: sa.Connection, delivery: Delivery, values: Mapping[str, object]
    ) -> sa.Row[tuple[object, ...]] | None:
        """Finish a PREPARED delivery and return its row; None if it was not PREPARED."""
        stream_id = queries.lock_stream(connection, delivery.manifest.batch.stream)
        if stream_id is None:
            return None
        checksum, now = delivery.manifest.content_sha256, self._clock()
        return delivery_queries.end_delivery(
            connection, stream_id, delivery.delivery_id, checksum, finished_at=now, **values
        )

    # Delivery state ---------------------------------------------------------------------------------

    def state(self, stream: StreamKey) -> DeliveryState:
        row = self._database.row(sa.select(streams).where(queries.is_stream(stream)))
        return DeliveryState() if row is None else queries.to_delivery_state(row)

    def set_state(self, lease: Lease, state: DeliveryState) -> None:
        """Store the delivery state, and park the stream if the state says so. Only `retry` unparks a
        stream.

        Raises:
            FencedError: another process holds the lease.
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
            if state.parked_at is not None:  # an operator may have parked the stream in the meantime
                is_free = (streams.c.id == stream_id, streams.c.parked_at.is_(None))
                connection.execute(sa.update(streams).where(*is_free).values(parked))

    def backlog(
        self,
        stream: StreamKey,
        before: int | None = None,
        limit: int | None = None,
        since: int | None = None,
    ) -> Backlog:
        """See `DeliveryStore`. Takes no lock. The cost grows with the number of batches that are added up."""
        chosen = queries.of_stream(stream)
        if before is not None:
            chosen = sa.and_(chosen, manifests.c.batch_id < before)
        if since is not None:
            chosen = sa.and_(chosen, manifests.c.batch_id >= since)
        with self._database.read() as connection:
            return manifest_queries.backlog(connection, chosen, limit)

    def wait(self, stream: StreamKey, since: datetime | None) -> None:
        """Record since when the query waits for its backlog to shrink; None: it does not wait."""
        with self._database.write() as connection:
            stream_id = self._lock(connection, stream)
            queries.update_stream(connection, stream_id, {"waiting_since": since})

    def backlog_of_query(self, query_id: str, since: int | None = None) -> Backlog:
        """All PREPARED batches of the streams of one query that are not parked. Its `batches` are those of
        the stream that has most. Takes no lock. The cost grows with the number of batches that are added up.

        Args:
            since: only this batch and later ones
        """
        own = sa.select(streams.c.id).where(streams.c.query_id == query_id, streams.c.parked_at.is_(None))
        with self._database.read() as connection:
            found = list(manifest_queries.backlogs(connection, own, since).values())
        return Backlog(
            max((one.batches for one in found), default=0),
            sum(one.files for one in found),
            sum(one.rows for one in found),
            sum(one.size_bytes for one in found),
            min((one.oldest_prepared_at for one in found if one.oldest_prepared_at), default=None),
        )

    def wait_for_query(self, query_id: str, since: datetime | None) -> None:
        """`wait` for all streams of a query that have PREPARED batches."""
        own = streams.c.query_id == query_id
        if since is None:
            chosen = sa.and_(own, streams.c.waiting_since.is_not(None))
        else:
            chosen = sa.and_(own, streams.c.id.in_(sa.select(manifests.c.stream_id).where(IS_PREPARED)))
        with self._database.write() as connection:
            connection.execute(sa.update(streams).where(chosen).values(waiting_since=since))

    def deliverable(
        self, stream: StreamKey, limit: int = BATCHES_READ, after: int | None = None
    ) -> Sequence[ManifestRecord]:
        """See `DeliveryStore`. Takes no lock, and reads no records of later batches."""
        of_stream = queries.of_stream(stream)
        query = sa.select(manifests).where(of_stream, IS_PREPARED, manifests.c.delivery_id.is_(None))
        if after is not None:
            query = query.where(manifests.c.batch_id > after)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(manifests.c.batch_id).limit(limit)).all()
            if not rows:
                return []
            first, last = rows[0].batch_id, rows[-1].batch_id
            gap = delivery_queries.find_gap(connection, of_stream, first, last, after)
        return [manifest_queries.to_record(stream, row) for row in rows if gap is None or row.batch_id < gap]

    def manifests_of(self, stream: StreamKey, batches: Sequence[Batch]) -> Sequence[Manifest]:
        """See `DeliveryStore`. Takes no lock."""
        ids = [batch.batch_id for batch in batches]
        found = contents.of_batches(self._database, stream, ids, CONTENTS_BYTES_READ)
        in_order = zip(ids, found, strict=False)
        return [one for _, one in takewhile(lambda pair: pair[0] == pair[1].batch.batch_id, in_order)]

    def recent(self, stream: StreamKey, limit: int) -> Sequence[DeliveryRecord]:
        """The newest deliveries in any state, newest first. Takes no lock."""
        query = delivery_queries.RECORDS.where(queries.is_delivery_of(stream))
        rows = self._database.rows(query.order_by(deliveries.c.id.desc()).limit(limit))
        return [delivery_queries.to_record(stream, row) for row in rows]

    def recent_of_each(
        self, given: Collection[StreamKey], limit: int
    ) -> Iterator[tuple[StreamKey, Sequence[DeliveryRecord]]]:
        """Yield the streams that have deliveries, each with what `recent` returns. Takes no lock. Reads some
        streams at a time.
        """
        wanted = set(given)
        with self._database.read() as connection:
            found = connection.execute(sa.select(streams.c.id, streams.c.query_id, streams.c.table_uri))
            keys = {row.id: key for row in found if (key := StreamKey(row[1], row[2])) in wanted}
        ids = list(keys)
        for start in range(0, len(ids), IDS_MAX):
            query = delivery_queries.newest_of_each(ids[start : start + IDS_MAX], limit)
            rows = self._database.rows(query)
            for stream_id, of_stream in groupby(rows, key=lambda row: row.stream_id):
                key = keys[stream_id]
                yield key, [delivery_queries.to_record(key, row) for row in of_stream]

    # Clean-up ---------------------------------------------------------------------------------------

    def with_sources(self, stream: StreamKey) -> Sequence[DeliveryRecord]:
        """COMMITTED deliveries whose source files are not removed yet, oldest first. Takes no lock."""
        has_sources = (deliveries.c.is_compacted, deliveries.c.sources_removed_at.is_(None))
        is_committed = deliveries.c.state == DeliveryPhase.COMMITTED.value
        query = delivery_queries.RECORDS.where(queries.is_delivery_of(stream), is_committed, *has_sources)
        rows = self._database.rows(query.order_by(deliveries.c.id))
        return [delivery_queries.to_record(stream, row) for row in rows]

    def sources(self, delivery: DeliveryRecord) -> Iterator[Manifest]:
        """Yield the own manifests of a delivery's batches, oldest first, until its source files are
        removed.

        Only one manifest is in memory at a time, and no transaction stays open between two of them.

        Raises:
            ManifestCorruptError: the content does not match its checksum.
        """
        return contents.of_delivery(self._database, delivery)

    def manifest(self, delivery: DeliveryRecord) -> Manifest | None:
        """Return the manifest that the delivery commits, with `merged` left empty; None if it was pruned.
        Takes no lock.

        Raises:
            ManifestCorruptError: the content does not match its checksum.
        """
        query = sa.select(deliveries).where(deliveries.c.id == delivery.delivery_id)
        row = self._database.row(query)
        return None if row is None else contents.checked_delivery(self._database, delivery.stream, row)

    def sources_removed(self, delivery_id: int) -> None:
        """Record that the source files of a delivery are deleted, and delete the contents that list them.
        Idempotent.

        Does nothing if the delivery is not COMMITTED or did not rewrite files.
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
        """Delete the records of finished batches beyond the age and count limits; return how many were
        deleted.

        A record is deleted if it was finished before `older_than` or if there are more than `keep` newer
        ones. Records of deliveries are deleted with their batches; abandoned deliveries and superseded runs
        are deleted by age. A superseded run that returns after that counts as new. These records are always
        kept: PREPARED batches, skipped ones, the newest record of the stream, unfinished deliveries, and
        deliveries whose source files are not removed yet, with their batches.

        Uses several short, independent transactions.

        Args:
            batches_max: stop after about this many batches; None: no limit
        """
        return pruning.prune(self._database, stream, older_than, keep, batches_max)
