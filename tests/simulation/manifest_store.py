"""A manifest store in memory, and what stands between a process and a store: a connection that fails.

`MemoryStore` does in dictionaries what `SqlManifestStore` does in SQL; the same tests run on both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, TypeAlias, TypeVar

from tests.simulation.scheduler import DiskFullError, Scheduler, UnreachableError

from penstock.committers.contract import (
    Batch,
    Manifest,
    ManifestRecord,
    ManifestState,
    Prepared,
    StreamKey,
)
from penstock.committers.errors import (
    CommitStateUnknownError,
    FencedError,
    PenstockError,
    RetryableError,
)
from penstock.committers.store import queries
from penstock.committers.store.database import Database
from penstock.committers.store.expiries import Expiry
from penstock.committers.store.sql import SqlManifestStore, WrittenTable
from penstock.committers.store.tables import metadata

T = TypeVar("T")

Clock = Callable[[], datetime]


@dataclass
class _Stream:
    kind: str
    query_name: str
    table_id: str
    table_version: int | None = None
    table_batch_id: int | None = None
    runs: list[str] = field(default_factory=list)
    """In the order of their fences: the last one holds the claim."""
    records: dict[int, ManifestRecord] = field(default_factory=dict)
    manifests: dict[int, Manifest] = field(default_factory=dict)

    def sorted_records(self) -> list[ManifestRecord]:
        return [self.records[batch_id] for batch_id in sorted(self.records)]


class MemoryStore:
    """See `SqlManifestStore`: the same methods with the same meaning."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._streams: dict[StreamKey, _Stream] = {}
        self.expiries = MemoryExpiries()

    # What becomes of it as a whole

    def lose(self) -> None:
        """As if its file were deleted and made anew."""
        self._streams = {}
        self.expiries = MemoryExpiries()

    def back_up(self) -> Any:
        return copy.deepcopy((self._streams, self.expiries))

    def restore(self, backup: Any) -> None:
        self._streams, self.expiries = copy.deepcopy(backup)

    def close(self) -> None:
        """Nothing is open."""

    # The protocol

    def register(self, stream: StreamKey, kind: str, query_name: str = "", table_id: str = "") -> None:
        known = self._streams.setdefault(stream, _Stream(kind, query_name, table_id))
        known.query_name = query_name
        if known.table_version is None:
            known.table_id = table_id

    def written_table(self, stream: StreamKey) -> WrittenTable | None:
        known = self._streams.get(stream)
        if known is None or known.table_version is None:
            return None
        return WrittenTable(known.table_id, known.table_version, known.table_batch_id)

    def accept_table(self, stream: StreamKey, table_id: str, table_version: int) -> None:
        known = self._known(stream)
        known.table_id, known.table_version, known.table_batch_id = table_id, table_version, None

    def claim(self, stream: StreamKey, run_id: str) -> None:
        runs = self._known(stream).runs
        if runs and runs[-1] == run_id:
            return
        if run_id in runs:
            raise FencedError(f"run {run_id} was taken over by {runs[-1]}")
        runs.append(run_id)

    def prepare(self, manifest: Manifest, run_id: str) -> Prepared:
        batch, known = manifest.batch, self._known(manifest.batch.stream)
        if not known.runs or known.runs[-1] != run_id:
            raise FencedError(f"run {run_id} does not hold the claim of {known.runs[-1:]}")
        record = known.records.get(batch.batch_id)
        if record is None or record.state is ManifestState.ABORTED:
            known.records[batch.batch_id] = record = ManifestRecord(
                batch=batch,
                state=ManifestState.PREPARED,
                kind=manifest.kind,
                version=manifest.version,
                files=manifest.files,
                rows=manifest.rows,
                size_bytes=manifest.size_bytes,
                run_id=run_id,
                prepared_at=self._clock(),
            )
            known.manifests[batch.batch_id] = manifest
        stored = known.manifests[batch.batch_id]
        is_ours = (record.run_id, record.batch, stored.content) == (run_id, batch, manifest.content)
        return Prepared(record, is_ours)

    def record(self, stream: StreamKey, batch_id: int) -> ManifestRecord | None:
        known = self._streams.get(stream)
        return None if known is None else known.records.get(batch_id)

    def manifest(self, stream: StreamKey, batch_id: int) -> Manifest | None:
        known = self._streams.get(stream)
        return None if known is None else known.manifests.get(batch_id)

    def pending(self, stream: StreamKey) -> Sequence[ManifestRecord]:
        known = self._streams.get(stream)
        records = [] if known is None else known.sorted_records()
        return [record for record in records if record.state is ManifestState.PREPARED]

    def finish(
        self, batch: Batch, state: ManifestState, *, table_version: int | None = None, reason: str = ""
    ) -> bool:
        if state is ManifestState.PREPARED:
            raise ValueError("a batch is finished as COMMITTED or ABORTED")
        known = self._streams.get(batch.stream)
        record = None if known is None else known.records.get(batch.batch_id)
        if known is None or record is None:
            return False
        if record.batch.digest != batch.digest or record.state is not ManifestState.PREPARED:
            return False
        known.records[batch.batch_id] = replace(
            record, state=state, finished_at=self._clock(), table_version=table_version, reason=reason
        )
        if table_version is not None:
            known.table_version, known.table_batch_id = table_version, batch.batch_id
        return True

    # Beyond the protocol

    def history(self, stream: StreamKey, limit: int) -> Sequence[ManifestRecord]:
        known = self._streams.get(stream)
        return [] if known is None else known.sorted_records()[::-1][:limit]

    def manifests(self, stream: StreamKey, state: ManifestState) -> Iterator[Manifest]:
        after = -1
        while True:
            known = self._streams.get(stream)
            records = [] if known is None else known.sorted_records()
            found = [r for r in records if r.state is state and r.batch.batch_id > after]
            if known is None or not found:
                return
            after = found[0].batch.batch_id
            yield known.manifests[after]

    def stream_keys(self) -> Sequence[StreamKey]:
        return list(self._streams)

    def _known(self, stream: StreamKey) -> _Stream:
        known = self._streams.get(stream)
        if known is None:
            raise RetryableError(f"the store does not know the stream {stream}")
        return known


class MemoryExpiries:
    """See `SqlExpiries`."""

    def __init__(self) -> None:
        self._by_id: dict[str, Expiry] = {}

    def put(self, expiry: Expiry) -> None:
        known = self._by_id.get(expiry.expiry_id)
        if known is None:
            self._by_id[expiry.expiry_id] = expiry
        else:
            self._by_id[expiry.expiry_id] = replace(known, expired_at=expiry.expired_at)

    def add_deleted(self, expiry: Expiry, deleted: int) -> None:
        known = self._by_id.get(expiry.expiry_id)
        if known is not None and known.deleted < deleted:
            self._by_id[expiry.expiry_id] = replace(known, deleted=deleted)

    def remove(self, expiry: Expiry) -> None:
        self._by_id.pop(expiry.expiry_id, None)

    def of_table(self, table_id: str, expired_before: datetime | None = None) -> Sequence[Expiry]:
        found = [expiry for expiry in self._by_id.values() if expiry.table_id == table_id]
        if expired_before is not None:
            found = [e for e in found if e.expired_at is None or e.expired_at <= expired_before]
        return sorted(found, key=lambda expiry: (expiry.planned_at, expiry.expiry_id))


class RealStore(SqlManifestStore):
    """The real store, on SQLite in memory or on Postgres, with what may become of it as a whole.

    Args:
        url: of a Postgres database, which is emptied; None for SQLite
    """

    def __init__(self, clock: Clock, url: str | None = None) -> None:
        super().__init__(Database(url) if url else Database("sqlite://", in_memory=True), clock)
        self.lose()

    def lose(self) -> None:
        with self.engine.begin() as connection:
            for table in reversed(metadata.sorted_tables):
                connection.execute(table.delete())

    def back_up(self) -> Any:
        with self.engine.connect() as connection:
            return {
                table: [dict(row) for row in connection.execute(table.select()).mappings()]
                for table in metadata.sorted_tables
            }

    def restore(self, backup: Any) -> None:
        self.lose()
        with self.engine.begin() as connection:
            for table, rows in backup.items():
                if rows:
                    connection.execute(table.insert(), rows)

    def stream_keys(self) -> Sequence[StreamKey]:
        return [stream.key for stream in self.streams()]

    def prepare(self, manifest: Manifest, run_id: str) -> Prepared:
        """Whoever gets this far holds the claim, and only what was given up is replaced."""
        batch = manifest.batch
        before = self.record(batch.stream, batch.batch_id)
        prepared = super().prepare(manifest, run_id)
        with self.engine.connect() as connection:
            assert queries.holder(connection, batch.stream) == run_id, "prepared without the claim"
        is_free = before is None or before.state is ManifestState.ABORTED
        assert is_free or prepared.record == before, "replaced a manifest that held for the batch"
        return prepared

    def finish(
        self, batch: Batch, state: ManifestState, *, table_version: int | None = None, reason: str = ""
    ) -> bool:
        """Only what is PREPARED, with this digest, comes to an end."""
        before = self.record(batch.stream, batch.batch_id)
        finished = super().finish(batch, state, table_version=table_version, reason=reason)
        was_pending = before is not None and before.state is ManifestState.PREPARED and before.batch == batch
        assert finished == was_pending, "the mark is no compare-and-set"
        return finished


SimulatedStore: TypeAlias = MemoryStore | RealStore


# The connection ---------------------------------------------------------------------------------------


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

    def register(self, stream: StreamKey, kind: str, query_name: str = "", table_id: str = "") -> None:
        self._write("register", lambda: self._store.register(stream, kind, query_name, table_id), stream)

    def written_table(self, stream: StreamKey) -> WrittenTable | None:
        return self._read("written table", lambda: self._store.written_table(stream), stream)

    def claim(self, stream: StreamKey, run_id: str) -> None:
        self._write("claim", lambda: self._store.claim(stream, run_id), run_id)

    def prepare(self, manifest: Manifest, run_id: str) -> Prepared:
        return self._write(
            "prepare",
            lambda: self._store.prepare(manifest, run_id),
            f"batch {manifest.batch.batch_id} by {run_id}",
            late=self._scheduler.hazards.late_prepare,
        )

    def record(self, stream: StreamKey, batch_id: int) -> ManifestRecord | None:
        return self._read("record", lambda: self._store.record(stream, batch_id), batch_id)

    def peek(self, batch: Batch) -> ManifestRecord | None:
        """What is known of the batch, with these offsets; without a step."""
        record = self._store.record(batch.stream, batch.batch_id)
        return record if record is not None and record.batch == batch else None

    def manifest(self, stream: StreamKey, batch_id: int) -> Manifest | None:
        return self._read("manifest", lambda: self._store.manifest(stream, batch_id), batch_id)

    def pending(self, stream: StreamKey) -> Sequence[ManifestRecord]:
        return self._read("pending", lambda: self._store.pending(stream), stream)

    def finish(
        self, batch: Batch, state: ManifestState, *, table_version: int | None = None, reason: str = ""
    ) -> bool:
        def act() -> bool:
            return bool(self._store.finish(batch, state, table_version=table_version, reason=reason))

        about = f"batch {batch.batch_id} {state.value} {reason}"
        return self._write("finish", act, about, unless_landed=CommitStateUnknownError)

    def history(self, stream: StreamKey, limit: int) -> Sequence[ManifestRecord]:
        return self._read("history", lambda: self._store.history(stream, limit), stream)

    def manifests(self, stream: StreamKey, state: ManifestState) -> Iterator[Manifest]:
        found = self._store.manifests(stream, state)
        while (manifest := self._read("manifests", lambda: next(found, None), state.value)) is not None:
            yield manifest

    @property
    def expiries(self) -> ExpiriesConnection:
        return ExpiriesConnection(self)

    @property
    def stored_expiries(self) -> Any:
        return self._store.expiries

    def _read(self, what: str, act: Callable[[], T], about: object) -> T:
        try:
            return self._scheduler.request(f"store: {what}", act, about=about, writes=False)
        except UnreachableError as error:
            raise RetryableError(str(error)) from error

    def _write(
        self,
        what: str,
        act: Callable[[], T],
        about: object,
        unless_landed: type[PenstockError] = RetryableError,
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
            raise unless_landed(str(error)) from error
        except UnreachableError as error:
            sent = "no connection" not in str(error)
            raise (CommitStateUnknownError if sent else unless_landed)(str(error)) from error


class ExpiriesConnection:
    """The expiries as one process reaches them."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    def put(self, expiry: Expiry) -> None:
        self._connection._write("put expiry", lambda: self._stored.put(expiry), expiry.expiry_id)

    def add_deleted(self, expiry: Expiry, deleted: int) -> None:
        self._connection._write(
            "expiry's deleted files", lambda: self._stored.add_deleted(expiry, deleted), deleted
        )

    def remove(self, expiry: Expiry) -> None:
        self._connection._write("remove expiry", lambda: self._stored.remove(expiry), expiry.expiry_id)

    def of_table(self, table_id: str, expired_before: datetime | None = None) -> Sequence[Expiry]:
        return self._connection._read(
            "expiries", lambda: self._stored.of_table(table_id, expired_before), table_id
        )

    @property
    def _stored(self) -> Any:
        return self._connection.stored_expiries


def clock_of(scheduler: Scheduler) -> Clock:
    """The time of the simulation, as the store and the clean-up want it."""
    return lambda: datetime.fromtimestamp(scheduler.now, timezone.utc)
