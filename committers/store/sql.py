"""The manifest store in a SQL database: SQLite inside the checkpoint, or Postgres by URL.

Runs on the driver, in the delivery process and in the command line. It holds what is pending; what is
committed, the table knows. Nothing of a query's options goes in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, Row

from ..contract import Batch, Manifest, ManifestRecord, ManifestState, Prepared, StreamKey
from ..errors import CommitStateUnknownError, FencedError, ManifestCorruptError, RetryableError
from . import queries
from .database import Database
from .expiries import SqlExpiries
from .tables import IS_PREPARED, manifests, streams

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream, for people."""

    key: StreamKey
    kind: str
    query_name: str
    created_at: datetime
    last: ManifestRecord | None
    """The highest batch id that was ever prepared, whatever became of it."""
    pending: int
    oldest_pending_at: datetime | None
    """When the longest waiting batch was prepared."""
    committed_batches: int
    committed_rows: int
    committed_bytes: int


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """The table that a stream has committed to, and its version that holds the last batch."""

    table_id: str
    table_version: int
    batch_id: int | None
    """That batch; None if an operator has accepted the table as it was at that version."""


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def sqlite_url(path: str) -> str:
    """The URL of the store in a file; the path may have any characters."""
    return URL.create("sqlite", database=path).render_as_string(hide_password=False)


def open_store(url: str, clock: Clock = utc_now, *, must_exist: bool = False) -> SqlManifestStore:
    """Open the store at a SQLAlchemy URL; its tables are created or upgraded where needed.

    Args:
        must_exist: a database without a store is an error: who only looks must not leave an empty one

    Raises:
        ConfigurationError: wrong URL, missing driver, unreachable, not permitted, or written by a newer
            version of Penstock.
    """
    return SqlManifestStore(Database(url, must_exist=must_exist), clock)


def open_store_in_memory(clock: Clock = utc_now) -> SqlManifestStore:
    """A store that ends with the process: for writes that nobody would replay."""
    return SqlManifestStore(Database("sqlite://", in_memory=True), clock)


class SqlManifestStore:
    """`ManifestStore` on SQLite and Postgres. Safe to share among threads, not among forked processes.

    All changes to one stream take the lock on its row first, so they happen one after the other.
    Any method may raise `RetryableError` when the database does not answer; those that write may raise
    `CommitStateUnknownError` when the answer to the database's own COMMIT got lost.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.expiries = SqlExpiries(database)

    def __enter__(self) -> SqlManifestStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SqlManifestStore({self.name})"

    def close(self) -> None:
        self._database.close()

    @property
    def name(self) -> str:
        """The URL without its secrets."""
        return self._database.name

    @property
    def engine(self) -> Engine:
        return self._database.engine

    # The protocol -----------------------------------------------------------------------------------

    def register(self, stream: StreamKey, kind: str, query_name: str = "", table_id: str = "") -> None:
        """Make the stream known. Idempotent; a query that was renamed is shown under its new name.

        `table_id` is kept until the first batch is committed, and is fixed from then on.
        """
        with self._database.read() as connection:
            query = sa.select(streams.c.query_name, streams.c.table_id).where(queries.is_stream(stream))
            known = connection.execute(query).one_or_none()
        if known is None or tuple(known) != (query_name, table_id):
            with self._database.write() as connection:
                queries.put_stream(connection, stream, kind, query_name, table_id, self._clock())

    def written_table(self, stream: StreamKey) -> WrittenTable | None:
        """The table that the stream has committed to; None before its first commit."""
        known = (streams.c.table_id, streams.c.table_version, streams.c.table_batch_id)
        query = sa.select(*known).where(queries.is_stream(stream))
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or row.table_version is None:
            return None
        return WrittenTable(row.table_id, row.table_version, row.table_batch_id)

    def accept_table(self, stream: StreamKey, table_id: str, table_version: int) -> None:
        """An operator's word that the stream shall go on with this table, as it is at this version."""
        with self._database.write() as connection:
            values = {"table_id": table_id, "table_version": table_version, "table_batch_id": None}
            queries.put_table(connection, self._lock(connection, stream), values)

    def claim(self, stream: StreamKey, run_id: str) -> None:
        """Make `run_id` the run that may prepare batches of the stream.

        Every run that is new to the stream gets the next higher fence; the highest one holds the claim.

        Raises:
            FencedError: another run has taken over since.
        """
        with self._database.read() as connection:  # the usual case, without a lock and a wait for the disk
            if queries.holder(connection, stream) == run_id:
                return
        with self._database.write() as connection:
            stream_id = self._lock(connection, stream)
            current = queries.current_run(connection, stream_id)
            if current is None:
                queries.put_run(connection, stream_id, 1, run_id, self._clock())
            elif current.run_id != run_id:
                if queries.was_seen(connection, stream_id, run_id):
                    raise _fenced(stream, run_id, current)
                queries.put_run(connection, stream_id, current.fence + 1, run_id, self._clock())

    def prepare(self, manifest: Manifest, run_id: str) -> Prepared:
        """Make the manifest durable, PREPARED, unless the batch has one: first prepared wins.

        `is_ours` is also True when the same run prepared the very same manifest before and the answer
        got lost, even if it was committed since: what is stored names the files of the one given, and
        they must not be deleted.

        Raises:
            FencedError: `run_id` does not hold the claim.
        """
        batch, checksum = manifest.batch, manifest.content_sha256
        with self._database.write() as connection:
            stream_id = self._lock(connection, batch.stream)
            current = queries.current_run(connection, stream_id)
            if current is None or current.run_id != run_id:
                raise _fenced(batch.stream, run_id, current)
            row = queries.find_manifest(connection, stream_id, batch.batch_id)
            if row is not None and row.state == ManifestState.ABORTED.value:
                queries.delete_manifest(connection, stream_id, batch.batch_id)
                row = None
            if row is None:
                queries.put_manifest(connection, stream_id, manifest, checksum, run_id, self._clock())
                row = queries.find_manifest(connection, stream_id, batch.batch_id)
        assert row is not None
        is_ours = (row.run_id, row.digest, row.content_sha256) == (run_id, batch.digest, checksum)
        return Prepared(queries.to_record(batch.stream, row), is_ours)

    def record(self, stream: StreamKey, batch_id: int) -> ManifestRecord | None:
        """What is known of the batch; None if it was never prepared."""
        query = sa.select(manifests).where(queries.of_stream(stream), manifests.c.batch_id == batch_id)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else queries.to_record(stream, row)

    def manifest(self, stream: StreamKey, batch_id: int) -> Manifest | None:
        """The whole manifest, its content checked against the checksum written with it.

        Raises:
            ManifestCorruptError: the content is not what was written.
        """
        query = queries.WHOLE_MANIFESTS.where(queries.of_stream(stream), manifests.c.batch_id == batch_id)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else self._checked(stream, row)

    def pending(self, stream: StreamKey) -> Sequence[ManifestRecord]:
        """PREPARED batches in ascending order."""
        query = sa.select(manifests).where(queries.of_stream(stream), IS_PREPARED)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(manifests.c.batch_id)).all()
        return [queries.to_record(stream, row) for row in rows]

    def finish(
        self,
        batch: Batch,
        state: ManifestState,
        *,
        table_version: int | None = None,
        reason: str = "",
    ) -> bool:
        """PREPARED -> `state`, compare-and-set on (batch, digest, PREPARED); False if it was not so.

        Raises:
            CommitStateUnknownError: the database failed. The caller may just have committed to the table:
                nothing may be deleted, and the next recovery marks the batch.
        """
        if state is ManifestState.PREPARED:
            raise ValueError("a batch is finished as COMMITTED or ABORTED")
        values = {
            "state": state.value,
            "finished_at": self._clock(),
            "table_version": table_version,
            "reason": queries.storable(reason),
        }
        with self._database.write(unless_landed=CommitStateUnknownError) as connection:
            stream_id = queries.lock_stream(connection, batch.stream)
            if stream_id is None or not queries.update_prepared(connection, stream_id, batch, values):
                return False
            if state is ManifestState.COMMITTED:
                queries.add_to_sums(connection, stream_id, batch.batch_id)
            if table_version is not None:
                known = {"table_version": table_version, "table_batch_id": batch.batch_id}
                queries.put_table(connection, stream_id, known)
        return True

    # Beyond the protocol: for the command line and the clean-up -------------------------------------

    def set_reason(self, batch: Batch, reason: str) -> bool:
        """Record what the last attempt to commit a PREPARED batch ended in; False if it is not PREPARED."""
        with self._database.write() as connection:
            stream_id = queries.lock_stream(connection, batch.stream)
            values = {"reason": queries.storable(reason)}
            return stream_id is not None and queries.update_prepared(connection, stream_id, batch, values)

    def streams(self) -> Sequence[StreamStatus]:
        """All streams, in the order in which they were registered. Costs the same after any history."""
        with self._database.read() as connection:
            rows = connection.execute(sa.select(streams).order_by(streams.c.id)).all()
            return [_status(connection, row) for row in rows]

    def history(self, stream: StreamKey, limit: int) -> Sequence[ManifestRecord]:
        """The highest `limit` batch ids, highest first."""
        with self._database.read() as connection:
            return queries.newest(connection, stream, limit)

    def manifests(self, stream: StreamKey, state: ManifestState) -> Iterator[Manifest]:
        """Whole manifests in ascending order, one at a time: one in memory, no transaction held between.

        A batch may change its state meanwhile. Who needs every manifest reads PREPARED before COMMITTED:
        then none slips through.

        Raises:
            ManifestCorruptError: the content is not what was written.
        """
        is_in_state = IS_PREPARED if state is ManifestState.PREPARED else manifests.c.state == state.value
        query = queries.WHOLE_MANIFESTS.where(queries.of_stream(stream), is_in_state)
        query = query.order_by(manifests.c.batch_id).limit(1)
        after: sa.ColumnElement[bool] = sa.true()
        while True:
            with self._database.read() as connection:
                row = connection.execute(query.where(after)).one_or_none()
            if row is None:
                return
            after = manifests.c.batch_id > row.batch_id
            yield self._checked(stream, row)

    # ------------------------------------------------------------------------------------------------

    def _lock(self, connection: Connection, stream: StreamKey) -> int:
        stream_id = queries.lock_stream(connection, stream)
        if stream_id is None:
            raise RetryableError(
                f"The manifest store {self.name} does not know the stream {stream}: it was deleted or "
                "replaced while the query ran. Start the query again."
            )
        return stream_id

    def _checked(self, stream: StreamKey, row: Row[Any]) -> Manifest:
        if row.content is None or hashlib.sha256(row.content).hexdigest() != row.content_sha256:
            problem = "its content is gone" if row.content is None else "its content is not what was written"
            raise ManifestCorruptError(
                f"The manifest of batch {row.batch_id} ({row.state}) of the stream {stream} in the store "
                f"{self.name} is damaged: {problem}. Restore the store from a backup, then start the query "
                "again; until then run no clean-up, which could not tell which files the manifest names."
            )
        return Manifest(
            batch=Batch(stream, row.batch_id, row.digest),
            kind=row.kind,
            version=row.version,
            content=row.content,
            files=row.files,
            rows=row.rows,
            size_bytes=row.size_bytes,
            is_empty=row.is_empty,
        )


def _fenced(stream: StreamKey, run_id: str, current: Row[Any] | None) -> FencedError:
    if current is None:
        return FencedError(f"Run {run_id} has not claimed the stream {stream}. Start the query again.")
    return FencedError(
        f"Run {run_id} does not hold the stream {stream}: run {current.run_id} took over at "
        f"{current.claimed_at.isoformat(timespec='seconds')}. Let this query end. "
        "If it is the one that should run, stop the other and start this one again."
    )


def _status(connection: Connection, row: Row[Any]) -> StreamStatus:
    key = StreamKey(row.query_id, row.table_uri)
    newest = queries.newest(connection, key, limit=1)
    pending, oldest_pending_at = queries.count_pending(connection, row.id)
    return StreamStatus(
        key=key,
        kind=row.kind,
        query_name=row.query_name,
        created_at=row.created_at,
        last=newest[0] if newest else None,
        pending=pending,
        oldest_pending_at=oldest_pending_at,
        committed_batches=row.committed_batches,
        committed_rows=row.committed_rows,
        committed_bytes=row.committed_bytes,
    )
