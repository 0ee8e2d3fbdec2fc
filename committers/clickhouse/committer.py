"""The committer of ClickHouse tables: one ALTER of the fence decides about a batch, then its rows are moved.

The order of steps:

1. Tasks have inserted their rows into staging tables.
2. The commit gathers their parts in one table of the batch, which links files (`batch_table`).
3. One ALTER of the fence replaces the token of the query by that of the batch (`fence`). With that the batch
   is committed. It fails if another driver was faster.
4. The partitions of the batch are moved into the table, one by one. Whoever reads the token does that first,
   after a crash too.

If the answer to the ALTER is lost, the fence is read again. If it has the earlier token, it gets a new
number: then the ALTER cannot succeed later.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import cast

from .. import crash_points
from ..contract import Changes, Committed, Conflict, Manifest, Outcome
from ..database.committer import DatabaseCommitter
from ..database.content import TableContent
from ..database.contract import Cursor
from ..database.fence import FenceRow
from ..database.layout import TableState
from ..database.rows_by_key import RowsByKey
from ..database.server import COMMIT_TIMEOUT_S
from ..database.staging import StagingTable
from ..dry_runs import in_dry_run
from ..errors import NEXT_TRY, RetryableError
from ..protocol.failed_commit import failed_batch
from ..target import CheckToken
from . import batch_table
from .address import ClickHouseAddress
from .connection import ClickHouseConnection, ClickHouseError
from .fence import ClickHouseFence, ClickHouseFenceRow

_NOT_COMMITTED = "The batch was not committed"
_MOVING = "The last batch of the query is committed, but its rows could not be moved into the table yet"


class ClickHouseCommitter(DatabaseCommitter):
    """Commits manifests to one table. Runs on the driver and in the delivery process, one instance per call.

    A batch is committed at most once per (query, batch id). Its rows become visible partition by partition.
    """

    _address: ClickHouseAddress

    @property
    def _fence(self) -> ClickHouseFence:
        return cast("ClickHouseFence", self._dialect.fence)

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """See `Committer`.

        Raises:
            TableNotSupportedError: the table does not accept these rows.
            TableChangedError: the table or the fence was dropped or re-created.
            RetryableError: the batch was not committed; or it is, and its rows could not be moved yet.
            CommitStateUnknownError: the server does not answer.
        """
        self._loaded.clear()
        content = self._decode(manifest)
        crash_points.reach("commit.start", manifest.batch.batch_id)
        with closing(self._server.connect(COMMIT_TIMEOUT_S)) as connection:
            try:
                cursor = connection.cursor()
                if content.new_columns:
                    self._change_columns_before(cursor, manifest, content)
                outcome = self._decide(connection, cursor, manifest, content, check_token)
            except ClickHouseError as error:
                raise self._server.failed(error, _NOT_COMMITTED) from None
        if not isinstance(outcome, Conflict):
            self._finish(manifest, content)
            crash_points.reach("commit.landed", manifest.batch.batch_id)
        return outcome

    def _decide(
        self,
        connection: ClickHouseConnection,
        cursor: Cursor,
        manifest: Manifest,
        content: TableContent,
        check_token: CheckToken,
    ) -> Outcome:
        batch, address = manifest.batch, self._address
        row = cast("ClickHouseFenceRow", self._locked_row(cursor, batch, content))
        table = self._locked_table(cursor, content)
        self._complete(table, row)
        if done := self._already_committed(row, manifest):
            return done
        check_token(row.token)
        self._check_staged(cursor, manifest, content)
        if self._needed_changes(content, table):
            raise RetryableError(
                f"The {address.title} was altered while batch {batch.batch_id} of {batch.stream} was being "
                f"committed. {_NOT_COMMITTED}. {NEXT_TRY}"
            )
        with connection.pinned():
            following = self._gathered(cursor, manifest, content, table, row)
            try:
                is_decided = self._fence.advance(cursor, address, row, following)
            except ClickHouseError as error:
                if not error.is_lost:
                    raise
                is_decided = self._is_decided(error, manifest, row, following)
            if not is_decided:
                self._drop(following.rows_in)
                return Conflict("another driver has changed the token of the query")
            crash_points.reach("clickhouse.decided", batch.batch_id)
            if self._move_rows(cursor, following, is_first=True):
                return Committed(following.version)
        self._complete(table, following)
        return Committed(following.version)

    def _gathered(
        self,
        cursor: Cursor,
        manifest: Manifest,
        content: TableContent,
        table: TableState,
        row: ClickHouseFenceRow,
    ) -> ClickHouseFenceRow:
        """Gather the rows in one table, and return the token of the batch, which names it."""
        batch = manifest.batch
        replaces, version = isinstance(content.mode, Changes), 0
        if isinstance(content.mode, Changes) and content.mode.late_rows == "apply":
            version = self._fence.next_rows_version(cursor, self._address)
        rows = RowsByKey(self._dialect, content)
        rows_in = batch_table.gather(cursor, self._address, batch, rows, version)
        crash_points.reach("clickhouse.gathered", batch.batch_id)
        origins = content.origins
        return self._fence.next_row(
            row, batch, table.table_id, origins, rows_in, replaces=replaces, rows_version=version
        )

    def _is_decided(
        self,
        error: ClickHouseError,
        manifest: Manifest,
        row: ClickHouseFenceRow,
        following: ClickHouseFenceRow,
    ) -> bool:
        """Find out how an ALTER of the fence has ended whose answer was lost.

        Raises:
            RetryableError: it has not taken effect, and never will.
            CommitStateUnknownError: the server does not answer.
        """
        failed = failed_batch(
            manifest.batch, f"the {self._address.title}", self._server.in_short(error), can_commit_later=False
        )
        query_id, so = row.query_id, "It is unknown whether the batch was committed"
        with failed.reading_table(), self._server.transaction(so) as cursor:
            now = self._fence.lock(cursor, self._address, query_id, row.table_id)
            if now.number == row.number:
                # With the next number, the ALTER finds no column to drop, or one that it would add.
                again = replace(row, number=row.number + 1)
                self._fence.advance(cursor, self._address, row, again)
                now = self._fence.lock(cursor, self._address, query_id, row.table_id)
        if now == following:
            return True
        if now.token == row.token:
            self._drop(following.rows_in)
            raise failed.not_found()
        return False

    def _complete(self, table: TableState, row: FenceRow) -> None:
        """Move the rows of the query's last batch into the table, as far as its commit has not."""
        assert isinstance(row, ClickHouseFenceRow)
        if not row.rows_in or table.table_id != row.table_id or in_dry_run():
            return
        with self._server.transaction(_MOVING) as cursor:
            if batch_table.is_waiting(cursor, self._address, row.rows_in):
                self._move_rows(cursor, row, is_first=False)

    def _move_rows(self, cursor: Cursor, row: ClickHouseFenceRow, *, is_first: bool) -> bool:
        """Return False if the connection was interrupted, with `is_first`."""
        try:
            if row.rows_in:
                may_repeat = is_first or row.replaces
                batch_table.move(cursor, self._address, row.rows_in, row.batch_id, may_repeat=may_repeat)
        except ClickHouseError as error:
            if is_first and error.is_lost:
                return False
            raise self._server.failed(error, _MOVING) from None
        return True

    def _drop(self, rows_in: str) -> None:
        if rows_in:
            self.discard([(StagingTable(self._address.schema, rows_in, 0, 0),)])

    def _finish(self, manifest: Manifest, content: TableContent) -> None:
        self.discard([content.staged, content.needless])
