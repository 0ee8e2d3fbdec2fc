"""What `SqlDeliveries` keeps in tables, in dictionaries; the same tests run on both."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING

from penstock.committers.contract import (
    NO_LETTERS,
    AbortedBy,
    Batch,
    DeadLetter,
    DeadLetters,
    Manifest,
    ManifestRecord,
    ManifestState,
    StreamKey,
)
from penstock.committers.deliveries.contract import (
    BATCHES_READ,
    LEASE_S_MAX,
    Backlog,
    Delivery,
    DeliveryState,
    Lease,
)
from penstock.committers.deliveries.policy import is_ahead
from penstock.committers.errors import FencedError, RetryableError
from penstock.committers.progress import Progress
from penstock.committers.store.delivery_queries import DeliveryPhase, DeliveryRecord
from penstock.committers.store.operator_actions import OperatorAction

if TYPE_CHECKING:
    from tests.simulation.memory_store import MemoryStore

PREPARED, COMMITTED, ABORTED = ManifestState.PREPARED, ManifestState.COMMITTED, ManifestState.ABORTED


@dataclass(slots=True)
class StoredLease:
    holder: str
    fence: int
    expires_at: datetime | None


@dataclass(slots=True)
class StoredDelivery:
    record: DeliveryRecord
    manifest: Manifest


@dataclass(slots=True)
class StoredStream:
    """All that a store knows of one stream."""

    kind: str = ""
    query_name: str = ""
    table_id: str = ""
    settings: str = ""
    table_version: int | None = None
    table_batch_id: int | None = None
    runs: list[str] = field(default_factory=list)
    """In the order of their fences: the last one holds the claim."""
    records: dict[int, ManifestRecord] = field(default_factory=dict)
    manifests: dict[int, Manifest] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    """Batches whose contents went with the sources of their delivery."""
    letters: dict[int, dict[str, DeadLetter]] = field(default_factory=dict)
    """Dead letters by batch id and their own id."""
    waiting_since: datetime | None = None
    state: DeliveryState = field(default_factory=DeliveryState)
    lease: StoredLease | None = None
    deliveries: dict[int, StoredDelivery] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    operator_actions: list[OperatorAction] = field(default_factory=list)

    def put_letters(self, letters: DeadLetters) -> None:
        """Those that are there already stay."""
        for batch_id, some in letters.items():
            known = self.letters.setdefault(batch_id, {})
            for one in some:
                known.setdefault(one.letter_id, one)

    def sorted_records(self) -> list[ManifestRecord]:
        return [self.records[batch_id] for batch_id in sorted(self.records)]

    def pending(self) -> list[ManifestRecord]:
        return [record for record in self.sorted_records() if record.state is PREPARED]

    def in_delivery(self, delivery_id: int) -> list[ManifestRecord]:
        return [record for record in self.sorted_records() if record.delivery_id == delivery_id]

    def unfinished(self) -> StoredDelivery | None:
        all_of_them = self.deliveries.values()
        return next((one for one in all_of_them if one.record.phase is DeliveryPhase.PREPARED), None)

    def gap(self) -> int | None:
        """The first batch that was given up for its replay and is not prepared anew."""
        landed = max(
            (one.batch.batch_id for one in self.records.values() if one.state is COMMITTED), default=-1
        )
        waiting = (batch_id for batch_id, one in self.records.items() if one.awaits_replay)
        return min((batch_id for batch_id in waiting if batch_id > landed), default=None)


class MemoryDeliveries:
    """See `SqlDeliveries`: the same methods with the same meaning."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    # Leases

    def acquire(self, stream: StreamKey, holder: str, seconds: float) -> Lease | None:
        known, now = self._store.known(stream), self._store.now()
        held = known.lease
        expires_at = held.expires_at if held is not None and held.holder != holder else None
        if expires_at is not None and is_ahead(expires_at, now, LEASE_S_MAX):
            return None
        is_kept = held is not None and held.holder == holder and held.expires_at is not None
        fence = (0 if held is None else held.fence) + (0 if is_kept else 1)
        lease = Lease(stream, holder, fence, now + timedelta(seconds=seconds))
        known.lease = StoredLease(holder, fence, lease.expires_at)
        return lease

    def renew(self, lease: Lease, seconds: float) -> Lease:
        held = self.check_lease(lease)
        held.expires_at = self._store.now() + timedelta(seconds=seconds)
        return replace(lease, expires_at=held.expires_at)

    def release(self, lease: Lease) -> None:
        held = self._store.find(lease.stream).lease
        if held is not None and (held.holder, held.fence) == (lease.holder, lease.fence):
            held.expires_at = None

    def check_lease(self, lease: Lease) -> StoredLease:
        held = self._store.known(lease.stream).lease
        if held is None or (held.holder, held.fence) != (lease.holder, lease.fence) or not held.expires_at:
            raise FencedError(f"{lease.holder} no longer holds the lease: it is {held}")
        return held

    # Deliveries

    def prepare(self, lease: Lease, manifest: Manifest, trigger: str, *, is_compacted: bool) -> Delivery:
        if manifest.batches[-1] != manifest.batch or manifest.batch.stream != lease.stream:
            raise ValueError(
                "a delivery consists of batches of the lease's stream, and carries the id of the last batch"
            )
        known = self._store.known(lease.stream)
        self.check_lease(lease)
        sources = _deliverable(known, manifest.batches)
        if known.unfinished() is not None:
            raise RetryableError("the stream has an unfinished delivery")
        delivery_id, now = self._store.next_delivery_id(), self._store.now()
        record = DeliveryRecord(
            delivery_id=delivery_id,
            stream=lease.stream,
            first_batch_id=sources[0].batch.batch_id,
            last_batch_id=manifest.batch.batch_id,
            batches=len(sources),
            phase=DeliveryPhase.PREPARED,
            trigger=trigger,
            is_compacted=is_compacted,
            files=manifest.files,
            rows=manifest.rows,
            size_bytes=manifest.size_bytes,
            source_files=sum(one.files for one in sources),
            source_bytes=sum(one.size_bytes for one in sources),
            oldest_event_at=manifest.oldest_event_at,
            oldest_prepared_at=min(one.prepared_at for one in sources),
            fence=lease.fence,
            prepared_at=now,
            finished_at=None,
            table_version=None,
            reason="",
            sources_removed_at=None,
        )
        known.deliveries[delivery_id] = StoredDelivery(record, replace(manifest, merged=()))
        for one in sources:
            known.records[one.batch.batch_id] = replace(one, delivery_id=delivery_id)
        return Delivery(delivery_id, replace(manifest, merged=manifest.batches), trigger, is_compacted, now)

    def unfinished(self, stream: StreamKey) -> Delivery | None:
        known = self._store.find(stream)
        stored = known.unfinished()
        if stored is None:
            return None
        record = stored.record
        batches = tuple([one.batch for one in known.in_delivery(record.delivery_id)])
        manifest = replace(stored.manifest, merged=batches)
        return Delivery(record.delivery_id, manifest, record.trigger, record.is_compacted, record.prepared_at)

    def finish(
        self,
        delivery: Delivery,
        table_version: int | None,
        dead_letters: DeadLetters = NO_LETTERS,
        _dropped_rows: int = 0,
    ) -> bool:
        known = self._ended(delivery, phase=DeliveryPhase.COMMITTED, table_version=table_version)
        if known is None:
            return False
        done = {"state": COMMITTED, "finished_at": self._store.now(), "table_version": table_version}
        for one in known.in_delivery(delivery.delivery_id):
            if one.state is PREPARED:
                known.records[one.batch.batch_id] = replace(one, reason="", **done)  # type: ignore[arg-type]
        known.put_letters(dead_letters)
        if table_version is not None:
            known.table_version, known.table_batch_id = table_version, delivery.manifest.batch.batch_id
        return True

    def abandon(self, lease: Lease, delivery: Delivery, reason: str) -> bool:
        self.check_lease(lease)
        known = self._ended(delivery, phase=DeliveryPhase.ABANDONED, reason=reason)
        if known is None:
            return False
        for one in known.in_delivery(delivery.delivery_id):
            known.records[one.batch.batch_id] = replace(one, delivery_id=None)
        return True

    def _ended(self, delivery: Delivery, **values: object) -> StoredStream | None:
        """The stream, once the delivery is no longer PREPARED; None if it was not."""
        known = self._store.find(delivery.manifest.batch.stream)
        stored = known.deliveries.get(delivery.delivery_id)
        if stored is None or stored.record.phase is not DeliveryPhase.PREPARED:
            return None
        if stored.manifest.content != delivery.manifest.content:
            return None
        stored.record = replace(stored.record, finished_at=self._store.now(), **values)  # type: ignore[arg-type]
        return known

    # How it is going

    def state(self, stream: StreamKey) -> DeliveryState:
        return self._store.find(stream).state

    def set_state(self, lease: Lease, state: DeliveryState) -> None:
        known = self._store.known(lease.stream)
        self.check_lease(lease)
        if state.parked_at is None or known.state.parked_at is not None:
            now = known.state
            parked = {"parked_at": now.parked_at, "parked_by": now.parked_by, "parked_why": now.parked_why}
            state = replace(state, **parked)  # type: ignore[arg-type]
        known.state = state

    def backlog(
        self,
        stream: StreamKey,
        before: int | None = None,
        limit: int | None = None,
        since: int | None = None,
    ) -> Backlog:
        pending = self._store.find(stream).pending()
        records = [
            one
            for one in pending
            if (before is None or one.batch.batch_id < before)
            and (since is None or one.batch.batch_id >= since)
        ][:limit]
        return Backlog(
            batches=len(records),
            files=sum(one.files for one in records),
            rows=sum(one.rows for one in records),
            size_bytes=sum(one.size_bytes for one in records),
            oldest_prepared_at=min((one.prepared_at for one in records), default=None),
        )

    def wait(self, stream: StreamKey, since: datetime | None) -> None:
        self._store.known(stream).waiting_since = since

    def backlog_of_query(self, query_id: str, since: int | None = None) -> Backlog:
        found = [
            self.backlog(key, since=since)
            for key, known in self._store.streams.items()
            if key.query_id == query_id and known.state.parked_at is None
        ]
        return Backlog(
            batches=max((one.batches for one in found), default=0),
            files=sum(one.files for one in found),
            rows=sum(one.rows for one in found),
            size_bytes=sum(one.size_bytes for one in found),
            oldest_prepared_at=min(
                (one.oldest_prepared_at for one in found if one.oldest_prepared_at), default=None
            ),
        )

    def wait_for_query(self, query_id: str, since: datetime | None) -> None:
        for key, known in self._store.streams.items():
            if key.query_id == query_id and (known.waiting_since if since is None else known.pending()):
                known.waiting_since = since

    def deliverable(
        self, stream: StreamKey, limit: int = BATCHES_READ, after: int | None = None
    ) -> Sequence[ManifestRecord]:
        known = self._store.find(stream)
        gap = known.gap()
        free = [one for one in known.pending() if one.delivery_id is None]
        given = [one for one in free if gap is None or one.batch.batch_id < gap]
        return [one for one in given if after is None or one.batch.batch_id > after][:limit]

    def manifests_of(self, stream: StreamKey, batches: Sequence[Batch]) -> Sequence[Manifest]:
        found = [self._store.manifest(stream, batch.batch_id) for batch in batches]
        return [one for one in takewhile(lambda one: one is not None, found) if one is not None]

    def recent(self, stream: StreamKey, limit: int) -> Sequence[DeliveryRecord]:
        return self._records(stream)[::-1][:limit]

    # What is left to clean up

    def with_sources(self, stream: StreamKey) -> Sequence[DeliveryRecord]:
        return [one for one in self._records(stream) if _has_sources(one)]

    def sources(self, delivery: DeliveryRecord) -> Iterator[Manifest]:
        known = self._store.find(delivery.stream)
        stored = known.deliveries.get(delivery.delivery_id)
        if stored is not None and stored.record.sources_removed_at is None:
            for one in known.in_delivery(delivery.delivery_id):
                yield known.manifests[one.batch.batch_id]

    def manifest(self, delivery: DeliveryRecord) -> Manifest | None:
        stored = self._store.find(delivery.stream).deliveries.get(delivery.delivery_id)
        return None if stored is None else stored.manifest

    def sources_removed(self, delivery_id: int) -> None:
        for known in self._store.streams.values():
            stored = known.deliveries.get(delivery_id)
            if stored is not None and _has_sources(stored.record):
                stored.record = replace(stored.record, sources_removed_at=self._store.now())
                known.removed |= {one.batch.batch_id for one in known.in_delivery(delivery_id)}

    def _records(self, stream: StreamKey) -> list[DeliveryRecord]:
        return [one.record for one in self._store.find(stream).deliveries.values()]

    # Decisions of operators

    def park(self, stream: StreamKey, who: str, why: str) -> None:
        known, now = self._store.known(stream), self._store.now()
        known.state = replace(known.state, parked_at=now, parked_by=who, parked_why=why)
        known.operator_actions.append(OperatorAction(now, who, "park", None, why))

    def retry(self, stream: StreamKey, who: str, why: str) -> None:
        known = self._store.known(stream)
        anew = replace(known.state, tries=0, retry_at=None)
        known.state = replace(anew, parked_at=None, parked_by="", parked_why="")
        known.operator_actions.append(OperatorAction(self._store.now(), who, "retry", None, why))

    def skip(
        self, stream: StreamKey, batch_id: int, who: str, why: str, *, expected: Batch | None = None
    ) -> bool:
        known = self._store.known(stream)
        record = known.records.get(batch_id)
        if record is None or record.state is not PREPARED or expected not in (None, record.batch):
            return False
        self._give_up(known, [record], AbortedBy.SKIP, f"skipped by {who}: {why}")
        known.letters.pop(batch_id, None)
        known.operator_actions.append(OperatorAction(self._store.now(), who, "skip", batch_id, why))
        return True

    def abort_pending(
        self,
        stream: StreamKey,
        after_batch: int,
        who: str,
        why: str,
        *,
        expected: Collection[Batch] | None = None,
    ) -> Sequence[ManifestRecord]:
        known = self._store.known(stream)
        chosen = [one for one in known.pending() if one.batch.batch_id > after_batch]
        if expected is not None and {one.batch for one in chosen} != set(expected):
            raise RetryableError("other batches wait than were seen")
        self._give_up(known, chosen, AbortedBy.ABORT, f"aborted by {who}: {why}")
        now = self._store.now()
        known.operator_actions += [
            OperatorAction(now, who, "abort", one.batch.batch_id, why) for one in chosen
        ]
        if chosen:
            known.state = replace(known.state, tries=0, retry_at=None, error="")
        return [known.records[one.batch.batch_id] for one in chosen]

    def operator_actions(self, stream: StreamKey) -> Sequence[OperatorAction]:
        return list(self._store.find(stream).operator_actions)

    def _give_up(
        self, known: StoredStream, records: Sequence[ManifestRecord], by: AbortedBy, reason: str
    ) -> None:
        taken = [one for one in records if one.delivery_id is not None]
        if taken:
            raise RetryableError(f"batch {taken[0].batch.batch_id} is in delivery {taken[0].delivery_id}")
        for one in records:
            known.records[one.batch.batch_id] = replace(
                one,
                state=ABORTED,
                aborted_by=by,
                finished_at=self._store.now(),
                table_version=None,
                reason=reason,
            )


def _deliverable(known: StoredStream, given: Sequence[Batch]) -> list[ManifestRecord]:
    """Their records.

    Raises:
        RetryableError: one is not PREPARED and free, or one that comes first is left out.
    """
    last = given[-1].batch_id
    records = [one for one in known.pending() if one.batch.batch_id <= last]
    if any(one.delivery_id is not None for one in records):
        raise RetryableError("one of the batches is in a delivery")
    gap = known.gap()
    if gap is not None and gap < last:
        raise RetryableError(f"batch {gap} waits for its replay and must be delivered first")
    if [one.batch for one in records] != list(given):
        raise RetryableError("the stream has changed since the delivery was planned")
    return records


def _has_sources(record: DeliveryRecord) -> bool:
    """Files that it has replaced and that are not removed yet."""
    is_replaced = record.phase is DeliveryPhase.COMMITTED and record.is_compacted
    return is_replaced and record.sources_removed_at is None
