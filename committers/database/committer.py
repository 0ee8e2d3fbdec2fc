"""What committers of database tables share: the state of table and token, staging tables, steps of a commit.

`transaction` commits in a database that has transactions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..contract import (
    AlreadyCommitted,
    Batch,
    Changes,
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
from .server import DatabaseServer
from .staging import PREPARED, StagingTable, StagingTables

logger = get_logger(__name__)

NOT_COMMITTED = "The batch was not committed"


@dataclass(frozen=True, slots=True)
class _TableAndFence:
    """The table and the query's fence row when they were first loaded."""

    table: TableState | None
    row: FenceRow | None
    has_prepared: bool = False
    """There are prepared transactions of the query."""


class DatabaseCommitter(ABC):
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
        return

    def _prepared(self, query_id: str) -> PreparedOfQuery:
        return PreparedOfQuery(self._server, self._dialect, self._address, query_id)

    # Steps of a commit ------------------------------------------------------------------------------

    @abstractmethod
    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """See `Committer`. A batch before the token counts as committed, because the batches of a query are
        committed in order.

        Raises:
            TableNotSupportedError: the table does not accept these rows.
            TableChangedError: the table or the fence table was dropped or re-created.
            RetryableError: the batch was not committed.
        """

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
                f"{NOT_COMMITTED}. {NEXT_TRY}"
            )

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
