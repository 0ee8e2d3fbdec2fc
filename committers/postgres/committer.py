"""The committer of Postgres tables: one transaction per batch, with the batch's token in it.

The rows of a batch are in staging tables (`staging`), which are durable when their tasks end. The transaction
locks the query's row in the fence table, checks the token, moves the rows into the table, sets the token and
drops the staging tables. So table and token change together or not at all.

If the response to COMMIT is lost, the fence row is locked again. That waits for the end of the transaction in
question, so the row is final when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from .. import crash_points
from ..contract import (
    AlreadyCommitted,
    Batch,
    Changes,
    Committed,
    Conflict,
    DeadLetters,
    Manifest,
    Mode,
    Outcome,
    Token,
)
from ..dead_letters import BadRows, DeadLetterMax
from ..errors import (
    NEXT_TRY,
    PenstockError,
    RetryableError,
    TableChangedError,
)
from ..protocol.decision import is_in_table
from ..protocol.failed_commit import failed_batch
from ..protocol.token_check import is_committed
from ..target import CheckToken
from ..texts.safe_text import get_logger
from . import fence, refused_rows, tombstones
from .address import PostgresAddress
from .changes import RowChanger
from .columns import statements
from .connection import (
    COMMIT_TIMEOUT_S,
    Connection,
    Cursor,
    DatabaseError,
    PostgresServer,
    in_short,
    is_answer,
    is_conflict,
)
from .content import PostgresContent, decode
from .fence import FenceRow
from .history import HistoryChanger
from .moving import RowAppender, RowMover
from .staging import StagingTables, drop, missing_tables
from .table import PostgresTableState, check_same_table, check_supported, load_if_there
from .unique_keys import check_unique

logger = get_logger(__name__)

DROP_TIMEOUT_S = 5.0
"""How long a commit waits for readers of its staging tables.

Longer than Postgres' deadlock_timeout, after which an autovacuum is cancelled.
"""

_NOT_COMMITTED = "The batch was not committed"


@dataclass(frozen=True, slots=True)
class _TableAndFence:
    """The table and the query's fence row when they were first loaded."""

    table: PostgresTableState | None
    row: FenceRow | None


def _mover_of(mode: Mode) -> type[RowMover]:
    if not isinstance(mode, Changes):
        return RowAppender
    return RowChanger if mode.history is None else HistoryChanger


class PostgresCommitter:
    """Commits manifests to one Postgres table. Runs on the driver and in the delivery process, one instance
    per call.

    A batch is committed at most once per (query, batch id), even if other writers use the table at the same
    time.

    Args:
        server: connects to the database
        address: of the table
        on_bad_rows: what happens to rows that the server refuses in the commit
        dead_letter_max: how many of a batch may be dead letters; None: no limit
    """

    def __init__(
        self,
        server: PostgresServer,
        address: PostgresAddress,
        on_bad_rows: BadRows = BadRows.FAIL,
        dead_letter_max: DeadLetterMax | None = None,
    ) -> None:
        self._server = server
        self._address = address
        self._on_bad_rows = on_bad_rows
        self._dead_letter_max = dead_letter_max
        self._loaded: dict[str, _TableAndFence] = {}

    # Current state of the table ---------------------------------------------------------------------

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """See `SupportsTableIdentity`. Rows deleted by others do not matter, and `last_version` is not used:
        rows and token change together.
        """
        found = self._load(query_id)
        in_fence = None if found.row is None or found.row.token is None else found.row.table_oid
        for wrote in (table_id, in_fence):
            if wrote is not None:
                check_same_table(found.table, wrote, self._address)

    def accept(self, query_id: str) -> None:
        """See `SupportsTableIdentity`."""
        with self._server.transaction("Nothing was accepted") as cursor:
            table = load_if_there(cursor, self._address)
            if table is not None:
                row = fence.read(cursor, self._address, query_id)
                fence.accept(cursor, self._address, query_id, table.oid)
                if row is not None:
                    tombstones.accept(cursor, self._address, row.table_oid, table.oid)
        self._loaded.clear()

    def token(self, query_id: str) -> Token | None:
        """See `Committer`."""
        row = self._load(query_id).row
        return None if row is None else row.token

    def version(self, query_id: str) -> int:
        """Number of commits that the query has made to the table."""
        row = self._load(query_id).row
        return 0 if row is None else row.version

    def table_id(self, query_id: str) -> str | None:
        """The table's OID; None if it does not exist."""
        table = self._load(query_id).table
        return None if table is None else table.oid

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """The first of the origins from which another query was the last to commit to the table."""
        with self._server.transaction("Nothing was changed") as cursor:
            table = load_if_there(cursor, self._address)
            if table is None or not fence.is_there(cursor, self._address):
                return None
            for origin in origins:
                if fence.last_of_origin(cursor, self._address, origin, table.oid) not in (None, query_id):
                    return origin
        return None

    def has_rows(self) -> bool:
        """See `SupportsOrigins`."""
        with self._server.transaction("Nothing was changed") as cursor:
            if load_if_there(cursor, self._address) is None:
                return False
            row = cursor.execute(f"SELECT EXISTS (SELECT FROM {self._address.sql})").fetchone()
            return row is not None and bool(row[0])

    def _load(self, query_id: str) -> _TableAndFence:
        if query_id not in self._loaded:
            with self._server.transaction("Nothing was changed") as cursor:
                table = load_if_there(cursor, self._address)
                self._loaded[query_id] = _TableAndFence(table, fence.read(cursor, self._address, query_id))
        return self._loaded[query_id]

    # Commit ---------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """See `Committer`. Moves the rows into the table and sets its token, in one transaction.

        A batch before the token counts as committed, because the batches of a query are committed
        in order.

        Raises:
            TableNotSupportedError: the table does not accept these rows.
            TableChangedError: the table or the fence table was dropped or re-created.
            RetryableError: the batch was not committed.
        """
        self._loaded.clear()
        content = decode(manifest)
        crash_points.reach("commit.start", manifest.batch.batch_id)
        with closing(self._server.connect(COMMIT_TIMEOUT_S)) as connection:
            try:
                outcome = self._move(connection.cursor(), manifest, content, check_token)
            except DatabaseError as error:
                if is_conflict(error):
                    return Conflict(in_short(error))
                # its details contain values of rows
                raise self._server.failed(error, _NOT_COMMITTED) from None
            if isinstance(outcome, AlreadyCommitted):
                return outcome
            if error_at_end := _commit(connection):
                outcome_after = self._outcome_after(error_at_end, connection, manifest, content, outcome)
                if not isinstance(outcome_after, Committed):
                    return outcome_after
        crash_points.reach("commit.landed", manifest.batch.batch_id)
        if outcome.dropped_rows:
            logger.warning(
                "%s: the table refused %s of %s rows of batches %s to %s (see badRows).",
                manifest.batch.stream,
                outcome.dropped_rows,
                manifest.rows,
                manifest.batches[0].batch_id,
                manifest.batch.batch_id,
            )
        return outcome

    def _move(
        self, cursor: Cursor, manifest: Manifest, content: PostgresContent, check_token: CheckToken
    ) -> Committed | AlreadyCommitted:
        """The whole transaction except for its COMMIT."""
        address, batch = self._address, manifest.batch
        row = self._locked_row(cursor, batch, content)
        if done := self._already_committed(row, manifest):
            return replace(done, dead_letters=refused_rows.read(cursor, address, manifest, content))
        check_token(row.token)
        table = self._locked_table(cursor, content)
        self._check_staged(cursor, manifest, content)
        new, changes = content.new_columns, content.changes
        for statement in statements(content.columns, new, changes, table.columns, address):
            cursor.execute(statement)
        # DELETE instead of TRUNCATE, which would block readers and show them an empty table
        if content.mode == "overwrite":
            cursor.execute(f"DELETE FROM {address.sql}")
        limits = self._on_bad_rows, self._dead_letter_max
        mover = _mover_of(content.mode)
        dropped, letters = mover(cursor, address, manifest, content, *limits).move()
        refused_rows.put(cursor, address, manifest, content, letters)
        fence.update(cursor, address, batch, table.oid, content.origins)
        self._drop_staged(cursor, (*content.staged, *content.needless))
        return Committed(row.version + 1, dropped, dead_letters=letters)

    def _drop_staged(self, cursor: Cursor, staged: StagingTables) -> None:
        """Drop them unless they are being read, for example by pg_dump: a backup must not block the
        stream.
        """
        try:
            with cursor.connection.transaction():
                cursor.execute(f"SET LOCAL lock_timeout = '{DROP_TIMEOUT_S}s'")
                drop(cursor, [table.sql for table in staged])
        except DatabaseError as error:
            if not is_conflict(error):
                raise
            logger.warning(
                "%s staging tables of %s are left to penstock gc, because one of them is locked: %s",
                len(staged),
                self._address.uri,
                in_short(error),
            )

    def _locked_row(self, cursor: Cursor, batch: Batch, content: PostgresContent) -> FenceRow:
        if not fence.is_there(cursor, self._address):
            raise TableChangedError(
                f"The table {self._address.fence_sql} is missing. It stores which batches of the stream the "
                f"Postgres table {self._address.uri} has. Nothing was committed. Restore it; or start the "
                "query with a new checkpoint to write the table from the beginning."
            )
        return fence.lock(cursor, self._address, batch.stream.query_id, content.table_id)

    def _locked_table(self, cursor: Cursor, content: PostgresContent) -> PostgresTableState:
        """The table, locked so that it is not dropped or altered before this transaction ends."""
        table = load_if_there(cursor, self._address)
        check_same_table(table, content.table_id, self._address)
        cursor.execute(f"LOCK TABLE {self._address.sql} IN ROW EXCLUSIVE MODE")
        table = load_if_there(cursor, self._address)
        check_same_table(table, content.table_id, self._address)
        assert table is not None
        check_supported(table, self._address, content.mode)
        if isinstance(content.mode, Changes):
            check_unique(cursor, table, self._address, content.mode.identity)
        return table

    def _already_committed(self, row: FenceRow, manifest: Manifest) -> AlreadyCommitted | None:
        """The outcome if the table already has the batch."""
        token = row.token
        if not is_committed(manifest, token, f"Postgres table {self._address.uri}"):
            return None
        is_last = token is not None and token.batch_id == manifest.batch.batch_id
        return AlreadyCommitted(row.version if is_last else None)

    def _check_staged(self, cursor: Cursor, manifest: Manifest, content: PostgresContent) -> None:
        missing = missing_tables(cursor, content.staged)
        if missing:
            raise RetryableError(
                f"{len(missing)} of the {manifest.files} staging tables of batch {manifest.batch.batch_id} "
                f"of {manifest.batch.stream} are missing, first {missing[0]}: they were dropped. "
                f"{_NOT_COMMITTED}. {NEXT_TRY}"
            )

    def _outcome_after(
        self,
        error: DatabaseError,
        connection: Connection,
        manifest: Manifest,
        content: PostgresContent,
        outcome: Committed,
    ) -> Outcome:
        """Interpret an error of COMMIT."""
        if is_conflict(error):
            return Conflict(in_short(error))
        if is_answer(error):
            raise self._server.failed(error, _NOT_COMMITTED) from None
        connection.close()  # its transaction must not hold the lock that is requested next
        failed = failed_batch(
            manifest.batch,
            f"the Postgres table {self._address.uri}",
            in_short(error),
            can_commit_later=False,  # once the row is locked, the transaction has ended
        )
        with (
            failed.reading_table(),
            self._server.transaction("It is unknown whether the batch was committed") as cursor,
        ):
            row = self._locked_row(cursor, manifest.batch, content)
        if self._already_committed(row, manifest):
            return outcome
        raise failed.not_found()

    # Refused rows: see `HoldsRefusedRows` ----------------------------------------------------------

    def refused_rows(self, manifest: Manifest) -> DeadLetters:
        with self._server.transaction("Nothing was changed") as cursor:
            return refused_rows.read(cursor, self._address, manifest, decode(manifest))

    def delete_refused_rows(self, manifest: Manifest) -> None:
        try:
            with self._server.transaction("Nothing was changed") as cursor:
                refused_rows.delete(cursor, self._address, manifest, decode(manifest))
        except PenstockError as error:
            logger.warning("The table of refused rows is left to penstock gc: %s", error)

    # Staging tables -------------------------------------------------------------------------------

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """Missing staging tables of the manifest. The commit drops them, so none is missing for a batch that
        the table has.
        """
        query_id = manifest.batch.stream.query_id
        with self._server.transaction("Nothing was changed") as cursor:
            missing = missing_tables(cursor, decode(manifest).staged)
            # Another process may have committed the batch since the token was read, and dropped the tables.
            row = fence.read(cursor, self._address, query_id) if missing else None
        if missing:
            self._loaded.clear()
        return [] if is_in_table(None if row is None else row.token, manifest.batch) else missing

    def discard(self, payloads: Iterable[StagingTables]) -> int:
        """Drop staging tables that no manifest lists; return their number. If the database does not answer
        now, they are left to clean-up.
        """
        staged = [table for tables in payloads for table in tables]
        try:
            with self._server.transaction("Nothing was changed") as cursor:
                return drop(cursor, [table.sql for table in staged])
        except PenstockError as error:
            logger.warning("%s staging tables are left to penstock gc: %s", len(staged), error)
            return 0


def _commit(connection: Connection) -> DatabaseError | None:
    try:
        connection.commit()
    except DatabaseError as error:
        return error
    return None
