"""What stands between a process and a manifest store: a connection that fails."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, TypeVar

from tests.simulation.manifest_store import SimulatedStore
from tests.simulation.memory_deliveries import MemoryDeliveries
from tests.simulation.memory_store import Clock
from tests.simulation.scheduler import DiskFullError, Scheduler, UnreachableError

from penstock.committers.contract import (
    Batch,
    Manifest,
    ManifestRecord,
    ManifestState,
    Prepared,
    StreamKey,
)
from penstock.committers.deliveries.contract import Backlog, Delivery, DeliveryState, Lease
from penstock.committers.errors import CommitStateUnknownError, PenstockError, RetryableError
from penstock.committers.store.deliveries import SqlDeliveries
from penstock.committers.store.delivery_queries import DeliveryRecord
from penstock.committers.store.expiries import Expiry
from penstock.committers.store.sql import OtherQuery, WrittenTable

T = TypeVar("T")


class StoreConnection:
    """A store as one process reaches it: every method is one transaction, and may fail as real ones do.

    Args:
        store: a `MemoryStore`, or the real one
        is_remote: can a transaction land after its process gave up on it?
    """

    def __init__(self, store: SimulatedStore, scheduler: Scheduler, *, is_remote: bool) -> None:
        self._store = store
        self._scheduler = scheduler
        self._is_remote = is_remote
        self.last_prepared: Batch | None = None
        """What the store has said of the last prepare that it answered: its own batch, or an earlier one."""
        self.last_given_up: Batch | None = None
        """The last batch that was given up for its replay, and all behind it."""

    def register_stream(
        self, stream: StreamKey, kind: str, query_name: str = "", table_id: str = "", settings: str = ""
    ) -> None:
        self.write(
            "register_stream",
            lambda: self._store.register_stream(stream, kind, query_name, table_id, settings),
            stream,
        )

    def settings(self, stream: StreamKey) -> str:
        return self.read("settings", lambda: self._store.settings(stream), stream)

    def written_table(self, stream: StreamKey) -> WrittenTable | None:
        return self.read("written table", lambda: self._store.written_table(stream), stream)

    def other_queries(self, stream: StreamKey) -> Sequence[OtherQuery]:
        return self.read("other queries", lambda: self._store.other_queries(stream), stream)

    def claim(self, stream: StreamKey, run_id: str) -> None:
        self.write("claim", lambda: self._store.claim(stream, run_id), run_id)

    def abort_from(self, expected: ManifestRecord, reason: str) -> bool:
        about = f"batch {expected.batch.batch_id} {reason}"
        is_given_up = self.write("give up from", lambda: self._store.abort_from(expected, reason), about)
        if is_given_up:
            self.last_given_up = expected.batch
        return is_given_up

    def prepare(
        self,
        manifest: Manifest,
        run_id: str,
        *,
        follows: Batch | None = None,
        replacing: ManifestRecord | None = None,
    ) -> Prepared:
        prepared = self.write(
            "prepare",
            lambda: self._store.prepare(manifest, run_id, follows=follows, replacing=replacing),
            f"batch {manifest.batch.batch_id} by {run_id}",
            late=self._scheduler.hazards.late_prepare,
        )
        self.last_prepared = prepared.record.batch
        return prepared

    def record(self, stream: StreamKey, batch_id: int) -> ManifestRecord | None:
        return self.read("record", lambda: self._store.record(stream, batch_id), batch_id)

    def peek(self, batch: Batch) -> ManifestRecord | None:
        """What is known of the batch, with these offsets; without a step."""
        record = self._store.record(batch.stream, batch.batch_id)
        return record if record is not None and record.batch == batch else None

    def manifest(self, stream: StreamKey, batch_id: int) -> Manifest | None:
        return self.read("manifest", lambda: self._store.manifest(stream, batch_id), batch_id)

    def pending(self, stream: StreamKey) -> Sequence[ManifestRecord]:
        return self.read("pending", lambda: self._store.pending(stream), stream)

    def finish(
        self,
        batch: Batch,
        state: ManifestState,
        *,
        table_version: int | None = None,
        reason: str = "",
        expected: ManifestRecord | None = None,
    ) -> bool:
        def act() -> bool:
            return self._store.finish(
                batch, state, table_version=table_version, reason=reason, expected=expected
            )

        about = f"batch {batch.batch_id} {state.value} {reason}"
        return self.write("finish", act, about, unless_committed=CommitStateUnknownError)

    def prune(self, stream: StreamKey, kept_s: float, kept_max: int, batches_max: int) -> int:
        def act() -> int:
            return int(self._store.prune(stream, kept_s, kept_max, batches_max))

        return self.write("prune", act, f"all but {kept_max}")

    def history(self, stream: StreamKey, limit: int) -> Sequence[ManifestRecord]:
        return self.read("history", lambda: self._store.history(stream, limit), stream)

    def manifests(self, stream: StreamKey, state: ManifestState) -> Iterator[Manifest]:
        found = self._store.manifests(stream, state)
        while (manifest := self.read("manifests", lambda: next(found, None), state.value)) is not None:
            yield manifest

    @property
    def expiries(self) -> ExpiriesConnection:
        return ExpiriesConnection(self)

    @property
    def deliveries(self) -> DeliveriesConnection:
        return DeliveriesConnection(self, self._store.deliveries)

    @property
    def stored_expiries(self) -> Any:
        return self._store.expiries

    def read(self, what: str, act: Callable[[], T], about: object) -> T:
        try:
            return self._scheduler.request(f"store: {what}", act, about=about, writes=False)
        except UnreachableError as error:
            raise RetryableError(str(error)) from error

    def write(
        self,
        what: str,
        act: Callable[[], T],
        about: object,
        unless_committed: type[PenstockError] = RetryableError,
        late: float = 0.0,
    ) -> T:
        """A database driver never sends a COMMIT twice, so an answer that got lost stays lost."""
        landed = False

        def act_once() -> T:
            nonlocal landed
            if landed:
                raise UnreachableError(f"{what}: the connection broke after the commit")
            result = act()
            landed = True
            return result

        try:
            return self._scheduler.request(
                f"store: {what}", act_once, about=about, remote=self._is_remote, late=late
            )
        except DiskFullError as error:
            raise unless_committed(str(error)) from error
        except UnreachableError as error:
            sent = "no connection" not in str(error)
            raise (CommitStateUnknownError if sent else unless_committed)(str(error)) from error


class ExpiriesConnection:
    """The expiries as one process reaches them."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    def put(self, expiry: Expiry) -> None:
        self._connection.write("put expiry", lambda: self._stored.put(expiry), expiry.expiry_id)

    def add_deleted(self, expiry: Expiry, deleted: int) -> None:
        self._connection.write(
            "expiry's deleted files", lambda: self._stored.add_deleted(expiry, deleted), deleted
        )

    def remove(self, expiry: Expiry) -> None:
        self._connection.write("remove expiry", lambda: self._stored.remove(expiry), expiry.expiry_id)

    def of_table(self, table_id: str, expired_before: datetime | None = None) -> Sequence[Expiry]:
        return self._connection.read(
            "expiries", lambda: self._stored.of_table(table_id, expired_before), table_id
        )

    @property
    def _stored(self) -> Any:
        return self._connection.stored_expiries


class DeliveriesConnection:
    """The deliveries as one process reaches them."""

    def __init__(self, connection: StoreConnection, stored: MemoryDeliveries | SqlDeliveries) -> None:
        self._connection = connection
        self._stored = stored

    def acquire(self, stream: StreamKey, holder: str, seconds: float) -> Lease | None:
        return self._write("acquire lease", lambda: self._stored.acquire(stream, holder, seconds), holder)

    def renew(self, lease: Lease, seconds: float) -> Lease:
        return self._write("renew lease", lambda: self._stored.renew(lease, seconds), lease.holder)

    def release(self, lease: Lease) -> None:
        self._write("release lease", lambda: self._stored.release(lease), lease.holder)

    def prepare(self, lease: Lease, manifest: Manifest, trigger: str, *, is_compacted: bool) -> Delivery:
        def act() -> Delivery:
            return self._stored.prepare(lease, manifest, trigger, is_compacted=is_compacted)

        batches = f"batches {manifest.batches[0].batch_id} to {manifest.batch.batch_id}"
        about = f"{batches}, {trigger}{', compacted' if is_compacted else ''}"
        return self._write("prepare delivery", act, about)

    def unfinished(self, stream: StreamKey) -> Delivery | None:
        return self._read("unfinished delivery", lambda: self._stored.unfinished(stream), stream)

    def finish(self, delivery: Delivery, table_version: int | None) -> bool:
        return self._write(
            "finish delivery",
            lambda: self._stored.finish(delivery, table_version),
            f"{delivery.delivery_id} up to batch {delivery.manifest.batch.batch_id}",
            unless_committed=CommitStateUnknownError,
        )

    def abandon(self, delivery: Delivery, reason: str) -> bool:
        about = f"{delivery.delivery_id}: {reason}"
        return self._write("abandon delivery", lambda: self._stored.abandon(delivery, reason), about)

    def state(self, stream: StreamKey) -> DeliveryState:
        return self._read("delivery state", lambda: self._stored.state(stream), stream)

    def set_state(self, lease: Lease, state: DeliveryState) -> None:
        self._write("set delivery state", lambda: self._stored.set_state(lease, state), state)

    def backlog(self, stream: StreamKey, before: int | None = None) -> Backlog:
        return self._read("backlog", lambda: self._stored.backlog(stream, before), stream)

    def wait(self, stream: StreamKey, since: datetime | None) -> None:
        self._write("wait", lambda: self._stored.wait(stream, since), since)

    def deliverable(self, stream: StreamKey) -> Sequence[ManifestRecord]:
        return self._read("deliverable", lambda: self._stored.deliverable(stream), stream)

    def with_sources(self, stream: StreamKey) -> Sequence[DeliveryRecord]:
        return self._read("with sources", lambda: self._stored.with_sources(stream), stream)

    def sources(self, delivery: DeliveryRecord) -> Iterator[Manifest]:
        found = self._stored.sources(delivery)
        while (
            manifest := self._read("sources", lambda: next(found, None), delivery.delivery_id)
        ) is not None:
            yield manifest

    def manifest(self, delivery: DeliveryRecord) -> Manifest | None:
        about = delivery.delivery_id
        return self._read("delivery's manifest", lambda: self._stored.manifest(delivery), about)

    def sources_removed(self, delivery_id: int) -> None:
        self._write("sources removed", lambda: self._stored.sources_removed(delivery_id), delivery_id)

    def park(self, stream: StreamKey, who: str, why: str) -> None:
        self._write("park", lambda: self._stored.park(stream, who, why), stream)

    def retry(self, stream: StreamKey, who: str, why: str) -> None:
        self._write("retry", lambda: self._stored.retry(stream, who, why), stream)

    def skip(
        self, stream: StreamKey, batch_id: int, who: str, why: str, *, expected: Batch | None = None
    ) -> bool:
        skipped = partial(self._stored.skip, stream, batch_id, who, why, expected=expected)
        return self._write("skip", skipped, batch_id)

    def abort_pending(
        self,
        stream: StreamKey,
        after_batch: int,
        who: str,
        why: str,
        *,
        expected: Collection[Batch] | None = None,
    ) -> Sequence[ManifestRecord]:
        aborted = partial(self._stored.abort_pending, stream, after_batch, who, why, expected=expected)
        return self._write("abort pending", aborted, after_batch)

    def _read(self, what: str, act: Callable[[], T], about: object) -> T:
        return self._connection.read(what, act, about)

    def _write(
        self,
        what: str,
        act: Callable[[], T],
        about: object,
        unless_committed: type[PenstockError] = RetryableError,
    ) -> T:
        return self._connection.write(what, act, about, unless_committed)


def clock_of(scheduler: Scheduler) -> Clock:
    """The time of the simulation, as the store and the clean-up want it."""
    return lambda: datetime.fromtimestamp(scheduler.now, timezone.utc)
