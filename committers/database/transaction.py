"""The committer of a database that has transactions: one per batch, with the batch's token in it.

The rows of a batch are in staging tables (`staging`), which are durable when their tasks end. The transaction
locks the query's row in the fence table, checks the token, moves the rows into the table, sets the token and
drops the staging tables. So table and token change together or not at all. If the database commits with each
statement that creates, changes or drops tables, columns are changed before the transaction, and staging
tables are dropped after it: neither changes what readers see of the batch.

If the response to COMMIT is lost, the fence row is locked again. That waits for the end of the transaction in
question, so the row is final when it is read.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

from .. import crash_points
from ..contract import AlreadyCommitted, Changes, Committed, Conflict, DeadLetters, Manifest, Outcome
from ..errors import NEXT_TRY, PenstockError, RetryableError
from ..protocol.failed_commit import failed_batch
from ..target import CheckToken
from ..texts.safe_text import get_logger
from .committer import NOT_COMMITTED, DatabaseCommitter
from .content import TableContent
from .contract import Cursor
from .dialect import TransactionalDialect
from .prepared import names_of
from .server import COMMIT_TIMEOUT_S, TransactionalServer
from .staging import StagingTables

logger = get_logger(__name__)

DROP_TIMEOUT_S = 5.0
"""How long a commit waits for readers of its staging tables.

Longer than Postgres' deadlock_timeout, after which an autovacuum is cancelled.
"""


class TransactionCommitter(DatabaseCommitter):
    """See `DatabaseCommitter`. Rows and token of a batch are committed in one transaction."""

    _server: TransactionalServer
    _dialect: TransactionalDialect

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
                raise self._server.failed(error, NOT_COMMITTED) from None
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
                f"committed. {NOT_COMMITTED}. {NEXT_TRY}"
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
            raise self._server.failed(error, NOT_COMMITTED) from None
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


def _commit(server: TransactionalServer, connection: Any) -> Exception | None:
    try:
        connection.commit()
    except server.errors as error:
        return error
    return None
