"""The manifest store in a SQL database: SQLite inside the checkpoint, or Postgres.

Runs on the driver, in the delivery process and in the command line. The store records pending batches; the
table's token records what is committed. Secrets from the query's options are never stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import TracebackType

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

from ..contract import (
    NO_LETTERS,
    AbortedBy,
    Batch,
    DeadLetters,
    Manifest,
    ManifestRecord,
    ManifestState,
    StreamKey,
)
from ..errors import CommitStateUnknownError
from . import contents, manifest_queries, queries
from .compactions import SqlCompactions
from .contract import Prepared, PrepareRequest
from .database import Clock, Database
from .dead_letters import SqlDeadLetters
from .deliveries import SqlDeliveries
from .expiries import SqlExpiries
from .lineage import SqlLineage
from .maintenance import SqlMaintenance
from .preparation import Preparation, fenced
from .progress import SqlProgress
from .streams import SqlStreams
from .tables import IS_PREPARED, manifests
from .waiting import Patience, waits


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


def sqlite_url(path: str) -> str:
    """Return the URL of a SQLite store; the path may contain any characters."""
    return URL.create("sqlite", database=path).render_as_string(hide_password=False)


def open_store(
    url: str,
    clock: Clock = utc_now,
    *,
    lease_clock: Clock | None = None,
    must_exist: bool = False,
    wait_s: float = 0.0,
) -> SqlManifestStore:
    """Open the store at a SQLAlchemy URL. Tables are created or upgraded if needed.

    Args:
        lease_clock: measures leases; None: the clock of the database server. Injected for tests.
        must_exist: raise an error if the database has no store, so that read-only commands do not create one
        wait_s: how long this and each call of the store wait for a database that does not answer

    Raises:
        ConfigurationError: the URL is wrong, the driver is missing, the server is unreachable, permissions
            are missing, or the store was written by a newer version of Penstock.
    """
    database = Database(url, must_exist=must_exist, patience=Patience(wait_s))
    return SqlManifestStore(database, clock, lease_clock)


def open_store_in_memory(clock: Clock = utc_now) -> SqlManifestStore:
    """Open a store that exists only as long as the process: for batch writes, which are never replayed."""
    return SqlManifestStore(Database("sqlite://", in_memory=True), clock)


@waits(
    "claim_all",
    "prepare_all",
    "record",
    "manifest",
    "pending",
    "finish",
    "abort_from",
    "set_reason",
    "history",
)
class SqlManifestStore(SqlStreams):
    """`ManifestStore` on SQLite and Postgres. Safe to share among threads, not among forked processes.

    Each change locks the stream's row first, so changes to one stream are serialized. Methods raise
    `RetryableError` if the database does not answer. Methods that write raise `CommitStateUnknownError` if
    the database does not answer the COMMIT.
    """

    def __init__(self, database: Database, clock: Clock, lease_clock: Clock | None = None) -> None:
        super().__init__(database, clock)
        self.compactions = SqlCompactions(database, clock)
        self.expiries = SqlExpiries(database)
        self.lineage = SqlLineage(database)
        self.deliveries = SqlDeliveries(database, clock, lease_clock)
        self.maintenance = SqlMaintenance(database)
        self.progress = SqlProgress(database, clock)
        self.dead_letters = SqlDeadLetters(database)

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
    def has_same_file(self) -> bool:
        """False if the file of a SQLite store was deleted or replaced since it was opened."""
        return self._database.has_same_file

    @property
    def file(self) -> Path | None:
        """The file of a SQLite store; None for a server."""
        return self._database.file

    def time(self) -> datetime:
        """Return the time of the database server; for SQLite, that of this machine.

        Raises:
            RetryableError: the database does not answer.
        """
        with self._database.read() as connection:
            return self._database.time(connection, self._clock)

    @property
    def engine(self) -> Engine:
        return self._database.engine

    # Protocol ---------------------------------------------------------------------------------------

    def claim(self, stream: StreamKey, run_id: str) -> None:
        """Make `run_id` the run that may prepare batches of the stream.

        A new run gets the next higher fence. The run with the highest fence may prepare.

        Raises:
            FencedError: a newer run has taken over.
        """
        self.claim_all([stream], run_id)

    def claim_all(self, claimed: Sequence[StreamKey], run_id: str) -> None:
        """Call `claim` for several targets of one query, in one transaction. Raises as `claim`."""
        with self._database.read() as connection:  # the usual case: no lock and no disk flush
            others = [one for one in claimed if queries.holder(connection, one) != run_id]
        if not others:
            return
        with self._database.write() as connection:
            for stream in sorted(others, key=lambda one: (one.query_id, one.table_uri)):
                self._claim(connection, stream, run_id)

    def _claim(self, connection: Connection, stream: StreamKey, run_id: str) -> None:
        stream_id = self._lock(connection, stream)
        current = queries.current_run(connection, stream_id)
        if current is None:
            queries.put_run(connection, stream_id, 1, run_id, self._clock())
        elif current.run_id != run_id:
            if queries.is_known_run(connection, stream_id, run_id):
                raise fenced(stream, run_id, current)
            queries.put_run(connection, stream_id, current.fence + 1, run_id, self._clock())

    def prepare(
        self,
        manifest: Manifest,
        run_id: str,
        *,
        follows: Batch | None = None,
        replacing: ManifestRecord | None = None,
    ) -> Prepared:
        """Store the manifest as PREPARED unless the batch already has one: the first one wins.

        `is_ours` is also True if the same run has already prepared this manifest and the response was lost,
        even if it is committed by now. The stored manifest then lists the same files, so they must not be
        deleted.

        Args:
            follows: raise an error unless the store has this batch and it does not wait for its replay
            replacing: a PREPARED record to replace, if it is unchanged and not in a delivery

        Raises:
            FencedError: `run_id` does not hold the claim.
            RetryableError: the store was replaced, another run has changed one of these batches, another run
                has continued after a batch that was aborted to be replayed with these rows, or an operator
                has skipped the batch.
        """
        return self.prepare_all([PrepareRequest(manifest, follows, replacing)], run_id)[0]

    def prepare_all(self, requests: Sequence[PrepareRequest], run_id: str) -> Sequence[Prepared]:
        """Call `prepare` for several targets of one query, in one transaction: an error stores none.

        Returns the results in the order of the requests. Raises the errors of `prepare`.
        """
        with self._database.write() as connection:
            return Preparation(connection, self.name, self._clock).prepare_all(requests, run_id)

    def record(self, stream: StreamKey, batch_id: int) -> ManifestRecord | None:
        """The record of the batch; None if it was never prepared."""
        query = sa.select(manifests).where(queries.of_stream(stream), manifests.c.batch_id == batch_id)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else manifest_queries.to_record(stream, row)

    def manifest(self, stream: StreamKey, batch_id: int) -> Manifest | None:
        """The batch's own manifest, after its checksum is verified.

        Also None if the batch's delivery has rewritten its files and the source files are removed.

        Raises:
            ManifestCorruptError: the content does not match its checksum.
        """
        return contents.of_batch(self._database, stream, batch_id)

    def pending(self, stream: StreamKey, limit: int | None = None) -> Sequence[ManifestRecord]:
        """PREPARED batches in ascending order, or the oldest `limit` of them."""
        query = sa.select(manifests).where(queries.of_stream(stream), IS_PREPARED)
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(manifests.c.batch_id).limit(limit)).all()
        return [manifest_queries.to_record(stream, row) for row in rows]

    def finish(
        self,
        batch: Batch,
        state: ManifestState,
        *,
        table_version: int | None = None,
        reason: str = "",
        expected: ManifestRecord | None = None,
        dead_letters: DeadLetters = NO_LETTERS,
        dropped_rows: int = 0,
    ) -> bool:
        """Change PREPARED to `state` (compare-and-set on batch, digest and state); return False if that did
        not match.

        Also returns False for ABORTED if the batch is in an unfinished delivery, which may still be
        committed.

        Args:
            expected: also compare the whole record: another run may have replaced the files
            dead_letters: rows that the table refused in the commit, stored in the same transaction
            dropped_rows: of the outcome, for the count of committed rows; dead letters may be among them

        Raises:
            CommitStateUnknownError: the database failed. The caller may just have committed to the table. Do
                not delete anything; the next recovery marks the batch.
        """
        if state is ManifestState.PREPARED:
            raise ValueError("a batch is finished as COMMITTED or ABORTED")
        is_aborted = state is ManifestState.ABORTED
        values = {
            "state": state.value,
            "finished_at": self._clock(),
            "table_version": table_version,
            "reason": queries.storable(reason),
            "aborted_by": AbortedBy.REPLAY.value if is_aborted else None,
        }
        with self._database.write(unless_committed=CommitStateUnknownError) as connection:
            stream_id = queries.lock_stream(connection, batch.stream)
            if stream_id is None:
                return False
            if expected is not None and not _is_still(connection, stream_id, expected):
                return False
            if not manifest_queries.update_prepared(
                connection, stream_id, batch, values, only_free=is_aborted
            ):
                return False
            for batch_id, letters in dead_letters.items():
                manifest_queries.put_dead_letters(connection, stream_id, batch_id, letters)
            if state is ManifestState.COMMITTED:
                manifest_queries.count_committed(
                    connection, stream_id, batch.batch_id, table_version, dropped_rows
                )
            elif table_version is not None:
                known = {"table_version": table_version, "table_batch_id": batch.batch_id}
                queries.update_stream(connection, stream_id, known)
        return True

    def abort_from(self, expected: ManifestRecord, reason: str) -> bool:
        """Abort all PREPARED batches of the stream from this one on, in one transaction.

        Later batches that an operator has skipped wait for their replay from now on, like these.

        Returns False and aborts nothing if the record has changed, or if one of them is in an unfinished
        delivery.
        """
        batch = expected.batch
        with self._database.write() as connection:
            stream_id = self._lock(connection, batch.stream)
            if not _is_still(connection, stream_id, expected):
                return False
            return manifest_queries.abort_from(connection, stream_id, batch.batch_id, self._clock(), reason)

    # Methods for the command line and clean-up ------------------------------------------------------

    def prune(self, stream: StreamKey, kept_s: float, kept_max: int, batches_max: int) -> int:
        """Run one step of `deliveries.prune` after a commit, by the store's clock; return how many batches
        were deleted.

        Args:
            kept_s: keep records for this many seconds
            kept_max: keep at most this many of the newest records
            batches_max: approximate limit of this step
        """
        older_than = self._clock() - timedelta(seconds=kept_s)
        return self.deliveries.prune(stream, older_than, kept_max, batches_max)

    def set_reason(self, batch: Batch, reason: str) -> bool:
        """Store the result of the last attempt to commit a PREPARED batch; return False if it is not
        PREPARED.
        """
        with self._database.write() as connection:
            stream_id = queries.lock_stream(connection, batch.stream)
            values = {"reason": queries.storable(reason)}
            return stream_id is not None and manifest_queries.update_prepared(
                connection, stream_id, batch, values
            )

    def history(self, stream: StreamKey, limit: int) -> Sequence[ManifestRecord]:
        """The highest `limit` batch ids, highest first."""
        query = sa.select(manifests).where(queries.of_stream(stream))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(manifests.c.batch_id.desc()).limit(limit)).all()
        return [manifest_queries.to_record(stream, row) for row in rows]

    def manifests(self, stream: StreamKey, state: ManifestState) -> Iterator[Manifest]:
        """Yield all manifests that list files. Only one is in memory at a time, and no transaction stays
        open.

        The batches' own manifests come first, in ascending order, then those of deliveries, with `merged`
        left empty. With PREPARED, both are listed: the new files of a delivery are needed, and so are those
        of its batches in case it is abandoned. With COMMITTED, the batches of a delivery that has rewritten
        files are listed until the source files are removed; if it has not rewritten files, only the
        delivery's manifest lists them. The state of a batch or a delivery may change during the iteration. To
        get every manifest, read PREPARED before COMMITTED.

        Raises:
            ManifestCorruptError: the content does not match its checksum.
        """
        yield from contents.in_state(self._database, stream, state)


def _is_still(connection: Connection, stream_id: int, expected: ManifestRecord) -> bool:
    row = manifest_queries.find_manifest(connection, stream_id, expected.batch.batch_id)
    return row is not None and manifest_queries.to_record(expected.batch.stream, row) == expected
