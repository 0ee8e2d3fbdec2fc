"""The committer of database tables: one transaction per batch, with the batch's token in it.

The rows of a batch are in staging tables (`staging`), which are durable when their tasks end. The transaction
locks the query's row in the fence table, checks the token, moves the rows into the table, sets the token and
drops the staging tables. So table and token change together or not at all. If the database commits with each
statement that creates, changes or drops tables, columns are changed before the transaction, and staging
tables are dropped after it: neither changes what readers see of the batch.

If the response to COMMIT is lost, the fence row is locked again. That waits for the end of the transaction in
question, so the row is final when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from .. import crash_points
from ..contract import (
    AlreadyCommitted,
    Batch,
    Changes,
    Committed,
    Conflict,
    DeadLetters,
    Manifest,
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
from .cleanup import drop_staged
from .columns import needed_changes
from .content import TableContent
from .contract import Cursor, TableAddress
from .dialect import Dialect
from .fence import FenceRow
from .layout import AlterTable, TableState
from .matching import check_same_table, check_supported
from .prepared import PreparedOfQuery, names_of
from .server import COMMIT_TIMEOUT_S, DatabaseServer
from .staging import PREPARED, StagingTable, StagingTables

logger = get_logger(__name__)

DROP_TIMEOUT_S = 5.0
"""How long a commit waits for readers of its staging tables.

Longer than Postgres' deadlock_timeout, after which an autovacuum is cancelled.
"""

_NOT_COMMITTED = "The batch was not committed"


@dataclass(frozen=True, slots=True)
class _TableAndFence:
    """The table and the query's fence row when they were first loaded."""

    table: TableState | None
    row: FenceRow | None
    has_prepared: bool = False
    """There are prepared transactions of the query."""


class DatabaseCommitter:
    """Commits manifests to one table. Runs on the driver and in the delivery process, one instance
    per call.

    A batch is committed at most once per (query, batch id), even if other writers use the table at the same
    time.

    Args:
        server: connects to the database
        dialect: its statements
        address: of the table
        on_bad_rows: what happens to rows that the server refuses in the commit
        dead_letter_max: how many of a batch may be dead letters; None: no limit
    """

    def __init__(
        self,
        server: DatabaseServer,
        dialect: Dialect,
        address: TableAddress,
        on_bad_rows: BadRows = BadRows.FAIL,
        dead_letter_max: DeadLetterMax | None = None,
    ) -> None:
        self._server = server
        self._dialect = dialect
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
        in_fence = None if found.row is None or found.row.token is None else found.row.table_id
        for wrote in (table_id, in_fence):
            if wrote is not None:
                self._check_same_table(found.table, wrote)

    def accept(self, query_id: str) -> None:
        """See `SupportsTableIdentity`."""
        with self._server.transaction("Nothing was accepted") as cursor:
            table = self._dialect.load(cursor, self._address)
            if table is not None:
                row = self._dialect.fence.read(cursor, self._address, query_id)
                self._dialect.fence.accept(cursor, self._address, query_id, table.table_id)
                if row is not None and self._dialect.changes is not None:
                    self._dialect.changes.accept(cursor, self._address, row.table_id, table.table_id)
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
        """The table's id; None if it does not exist."""
        table = self._load(query_id).table
        return None if table is None else table.table_id

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """The first of the origins from which another query was the last to commit to the table."""
        if self._server.is_new():
            return None
        with self._server.transaction("Nothing was changed") as cursor:
            table = self._dialect.load(cursor, self._address)
            if table is None or not self._dialect.fence.is_there(cursor, self._address):
                return None
            for origin in origins:
                if self._last_query(cursor, origin, table) not in (None, query_id):
                    return origin
        return None

    def has_rows(self) -> bool:
        """See `SupportsOrigins`."""
        if self._server.is_new():
            return False
        with self._server.transaction("Nothing was changed") as cursor:
            if self._dialect.load(cursor, self._address) is None:
                return False
            return self._dialect.has_rows(cursor, self._address)

    def _last_query(self, cursor: Cursor, origin: str, table: TableState) -> str | None:
        return self._dialect.fence.last_of_origin(cursor, self._address, origin, table.table_id)

    def _check_same_table(self, table: TableState | None, table_id: str | None) -> None:
        check_same_table(table, table_id, self._address, self._dialect.id_name)

    def _load(self, query_id: str) -> _TableAndFence:
        if query_id not in self._loaded:
            if self._server.is_new():
                return _TableAndFence(None, None)
            with self._server.transaction("Nothing was changed") as cursor:
                table = self._dialect.load(cursor, self._address)
                row = self._dialect.fence.read(cursor, self._address, query_id)
                has_prepared = self._dialect.prepared is not None and self._prepared(query_id).has_any(cursor)
            if table is not None and has_prepared:  # rows of a batch that counts as committed become visible
                self._prepared(query_id).settle(table.table_id)
            if table is not None and row is not None:
                self._complete(table, row)
            self._loaded[query_id] = _TableAndFence(table, row, has_prepared)
        return self._loaded[query_id]

    def _complete(self, table: TableState, row: FenceRow) -> None:
        """Do what a commit has left after its decision, if a database needs that."""

    def _prepared(self, query_id: str) -> PreparedOfQuery:
        return PreparedOfQuery(self._server, self._dialect, self._address, query_id)

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
        content = self._decode(manifest)
        crash_points.reach("commit.start", manifest.batch.batch_id)
        with closing(self._server.connect(COMMIT_TIMEOUT_S)) as connection:
            try:
                cursor = connection.cursor()
                if not self._dialect.has_transactional_ddl:
                    self._change_columns_before(cursor, manifest, content)
                outcome = self._move(cursor, manifest, content, check_token)
            except self._server.errors as error:
                if self._server.is_conflict(error):
                    return Conflict(self._server.in_short(error))
                # its details contain values of rows
                raise self._server.failed(error, _NOT_COMMITTED) from None
            if isinstance(outcome, AlreadyCommitted):
                self._finish(manifest, content)
                return outcome
            if error_at_end := _commit(self._server, connection):
                outcome_after = self._outcome_after(error_at_end, connection, manifest, content, outcome)
                if not isinstance(outcome_after, Committed):
                    return outcome_after
        self._finish(manifest, content)
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
        self, cursor: Cursor, manifest: Manifest, content: TableContent, check_token: CheckToken
    ) -> Committed | AlreadyCommitted:
        """The whole transaction except for its COMMIT."""
        address, batch, dialect = self._address, manifest.batch, self._dialect
        row = self._locked_row(cursor, batch, content)
        if done := self._already_committed(row, manifest):
            return replace(done, dead_letters=dialect.read_refused(cursor, address, manifest, content))
        check_token(row.token)
        table = self._locked_table(cursor, content)
        self._check_staged(cursor, manifest, content)
        if dialect.has_transactional_ddl:
            self._change_columns(cursor, content, table)
        elif self._needed_changes(content, table):
            raise RetryableError(
                f"The {address.title} was altered while batch {batch.batch_id} of {batch.stream} was being "
                f"committed. {_NOT_COMMITTED}. {NEXT_TRY}"
            )
        if content.is_prepared:
            self._prepared(batch.stream.query_id).decide(cursor, names_of(content.staged))
            dialect.fence.update(cursor, address, batch, table.table_id, content.origins)
            return Committed(row.version + 1)
        # DELETE instead of TRUNCATE, which would block readers and show them an empty table
        if content.mode == "overwrite":
            cursor.execute(f"DELETE FROM {address.sql}")
        limits = self._on_bad_rows, self._dead_letter_max
        mode = content.mode
        mover = (
            dialect.keyed_changes().mover_of(mode) if isinstance(mode, Changes) else dialect.mover_of(mode)
        )
        dropped, letters = mover(self._server, dialect, cursor, address, manifest, content, *limits).move()
        if letters:
            dialect.put_refused(cursor, address, manifest, content, letters)
        dialect.fence.update(cursor, address, batch, table.table_id, content.origins)
        if self._drops_in_transaction:
            self._drop_staged(cursor, (*content.staged, *content.needless))
        return Committed(row.version + 1, dropped, dead_letters=letters)

    def _change_columns_before(self, cursor: Cursor, manifest: Manifest, content: TableContent) -> None:
        """Change the columns before the transaction, which these statements would commit. A crash leaves a
        table that accepts the rows, and no row of the batch.
        """
        row = self._dialect.fence.read(cursor, self._address, manifest.batch.stream.query_id)
        table = self._dialect.load(cursor, self._address)
        is_in = is_in_table(None if row is None else row.token, manifest.batch)
        if table is not None and table.table_id == content.table_id and not is_in:
            self._change_columns(cursor, content, table)

    def _change_columns(self, cursor: Cursor, content: TableContent, table: TableState) -> None:
        if wanted := self._needed_changes(content, table):
            for statement in self._dialect.alter(self._address, wanted):
                cursor.execute(statement)

    def _needed_changes(self, content: TableContent, table: TableState) -> AlterTable:
        new, changes, rules = content.new_columns, content.changes, self._dialect.types
        return needed_changes(content.columns, new, changes, table.columns, self._address, rules)

    @property
    def _drops_in_transaction(self) -> bool:
        return self._dialect.has_transactional_ddl and not self._dialect.has_staging_files

    def _finish(self, manifest: Manifest, content: TableContent) -> None:
        """After the transaction, commit what tasks have prepared, or drop the staging tables if that was not
        possible in it.
        """
        if content.is_prepared:
            crash_points.reach("prepared.decided", manifest.batch.batch_id)
            self._prepared(manifest.batch.stream.query_id).settle(content.table_id)
        elif not self._drops_in_transaction:
            self.discard([content.staged, content.needless])

    def _drop_staged(self, cursor: Cursor, staged: StagingTables) -> None:
        """Drop them unless they are being read, for example by pg_dump: a backup must not block the
        stream.
        """
        try:
            with self._server.savepoint(cursor):
                self._dialect.drop_in_time(cursor, staged, DROP_TIMEOUT_S)
        except self._server.errors as error:
            if not self._server.is_conflict(error):
                raise
            logger.warning(
                "%s staging tables of %s are left to penstock gc, because one of them is locked: %s",
                len(staged),
                self._address.uri,
                self._server.in_short(error),
            )

    def _locked_row(self, cursor: Cursor, batch: Batch, content: TableContent) -> FenceRow:
        if not self._dialect.fence.is_there(cursor, self._address):
            raise TableChangedError(
                f"The table {self._address.fence_sql} is missing. It stores which batches of the stream the "
                f"{self._address.title} has. Nothing was committed. Restore it; or start the "
                "query with a new checkpoint to write the table from the beginning."
            )
        return self._dialect.fence.lock(cursor, self._address, batch.stream.query_id, content.table_id)

    def _locked_table(self, cursor: Cursor, content: TableContent) -> TableState:
        """The table, locked so that it is not dropped or altered before this transaction ends."""
        table = self._dialect.load(cursor, self._address)
        self._check_same_table(table, content.table_id)
        self._dialect.lock_table(cursor, self._address)
        table = self._dialect.load(cursor, self._address)
        self._check_same_table(table, content.table_id)
        assert table is not None
        check_supported(table, self._address, content.mode)
        if isinstance(content.mode, Changes):
            self._dialect.keyed_changes().check_table(cursor, self._address, table, content.mode)
        return table

    def _already_committed(self, row: FenceRow, manifest: Manifest) -> AlreadyCommitted | None:
        """The outcome if the table already has the batch."""
        token = row.token
        if not is_committed(manifest, token, self._address.title):
            return None
        is_last = token is not None and token.batch_id == manifest.batch.batch_id
        return AlreadyCommitted(row.version if is_last else None)

    def _check_staged(self, cursor: Cursor, manifest: Manifest, content: TableContent) -> None:
        missing = self._missing(cursor, content.staged)
        if missing:
            raise RetryableError(
                f"{len(missing)} of the {manifest.files} staging tables of batch {manifest.batch.batch_id} "
                f"of {manifest.batch.stream} are missing, first {missing[0]}: they were dropped. "
                f"{_NOT_COMMITTED}. {NEXT_TRY}"
            )

    def _outcome_after(
        self,
        error: Exception,
        connection: Any,
        manifest: Manifest,
        content: TableContent,
        outcome: Committed,
    ) -> Outcome:
        """Interpret an error of COMMIT."""
        if self._server.is_conflict(error):
            return Conflict(self._server.in_short(error))
        if self._server.is_answer(error):
            raise self._server.failed(error, _NOT_COMMITTED) from None
        connection.close()  # its transaction must not hold the lock that is requested next
        failed = failed_batch(
            manifest.batch,
            f"the {self._address.title}",
            self._server.in_short(error),
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
            return self._dialect.read_refused(cursor, self._address, manifest, self._decode(manifest))

    def delete_refused_rows(self, manifest: Manifest) -> None:
        try:
            with self._server.transaction("Nothing was changed") as cursor:
                self._dialect.delete_refused(cursor, self._address, manifest, self._decode(manifest))
        except PenstockError as error:
            logger.warning("The table of refused rows is left to penstock gc: %s", error)

    # Staging tables -------------------------------------------------------------------------------

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """Missing staging tables of the manifest. The commit drops them, so none is missing for a batch that
        the table has.
        """
        query_id = manifest.batch.stream.query_id
        with self._server.transaction("Nothing was changed") as cursor:
            missing = self._missing(cursor, self._decode(manifest).staged)
            # Another process may have committed the batch since the token was read, and dropped the tables.
            fence = self._dialect.fence
            row = fence.read(cursor, self._address, query_id) if missing else None
        if missing:
            self._loaded.clear()
        return [] if is_in_table(None if row is None else row.token, manifest.batch) else missing

    def discard(self, payloads: Iterable[StagingTables]) -> int:
        """Drop staging tables that no manifest lists; return their number. If the database does not answer
        now, they are left to clean-up.
        """
        staged = tuple(table for tables in payloads for table in tables)
        try:
            return sum(
                drop_staged(self._server, self._dialect, self._address, query_id, some)
                for query_id, some in self._by_query(staged).items()
            )
        except PenstockError as error:
            logger.warning("%s staging tables are left to penstock gc: %s", len(staged), error)
            return 0

    def _by_query(self, staged: StagingTables) -> dict[str, list[StagingTable]]:
        """Return the payloads by their queries, which only prepared transactions need."""
        names, found = names_of(staged), {"": [one for one in staged if not one.is_prepared]}
        if names and self._dialect.prepared is not None:
            with self._server.transaction("Nothing was changed") as cursor:
                for kept in self._dialect.prepared.kept(cursor):
                    if kept.name in names:
                        one = StagingTable(PREPARED, kept.name, 0, 0)
                        found.setdefault(kept.query_id, []).append(one)
        return found

    def roll_back_attempts(self, query_id: str) -> None:
        """See `RollsBackAttempts`."""
        found = self._load(query_id)
        if found.table is not None and found.has_prepared:
            self._prepared(query_id).roll_back(found.table.table_id)
            self._loaded.clear()

    def _missing(self, cursor: Cursor, staged: StagingTables) -> list[str]:
        there = self._dialect.exist(cursor, staged)
        return [table.path for table, is_there in zip(staged, there, strict=True) if not is_there]

    def _decode(self, manifest: Manifest) -> TableContent:
        return self._dialect.manifests.decode(manifest)


def _commit(server: DatabaseServer, connection: Any) -> Exception | None:
    try:
        connection.commit()
    except server.errors as error:
        return error
    return None
