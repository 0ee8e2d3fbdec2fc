"""Transactions that tasks prepare and the driver commits: each row is written once, into the table itself.

The order of steps, with `commit=prepared`:

1. A task writes its rows into the table, and a row *written* into the table of prepared transactions, in one
   transaction. Then it prepares the transaction: the server keeps it, also after a crash, and shows nothing
   of it.
2. The manifest names the transactions of all tasks.
3. One transaction of the driver locks the query's row of the fence, checks the token and that all
   transactions are there, stores the *verdict* "commit" for each of them, and sets the token. With that the
   batch is committed.
4. Each transaction with a verdict is ended. Whoever reads the token does that first, after a crash too.
5. The verdicts are deleted, and the rows *written*.

A database does not tell how a prepared transaction has ended: a repeated COMMIT PREPARED or XA COMMIT finds
nothing. The row *written* decides: it is there if the transaction was committed.

A transaction is rolled back only after the verdict "roll back" was stored for it, under the same lock. So no
commit that names it can follow, however long one of the two processes is paused. Verdicts are only deleted
under the lock, for transactions that have ended. A database adds its statements in `PreparedTransactions`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from .. import crash_points
from ..contract import Mode
from ..dry_runs import in_dry_run
from ..errors import NEXT_TRY, ConfigurationError, RetryableError, TableChangedError
from .contract import Cursor, TableAddress
from .server import DatabaseServer
from .staging import PREFIX, StagingName, StagingTable, query_hash

PREPARED_TABLE = "penstock_prepared"
BUSY_S = 10.0
"""How long to wait for another process that ends the same transaction."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that the server keeps."""

    transaction_id: str
    prepared_at: datetime

    @property
    def query_id(self) -> str:
        return self.transaction_id.partition("/")[0]

    @property
    def name(self) -> str:
        """Its name in manifests: that of a staging table."""
        return self.transaction_id.partition("/")[2]


def transaction_id(query_id: str, name: str) -> str:
    """Return the id of the transaction of a task attempt. A query id contains no slash.

    Args:
        name: from `staging_name`, so it is unique for each attempt
    """
    return f"{query_id}/{name}"


class PreparedTransactions(ABC):
    """The statements of one database. Has no state."""

    ddl: ClassVar[str]
    """Creates the table `{table}` if it does not exist: `transaction_id`, `is_written`, `commits`,
    `query_id`, `table_name`; the first two are the primary key.
    """

    # Before a batch ---------------------------------------------------------------------------------

    def check(self, cursor: Cursor, address: Any, mode: Mode) -> None:
        """Check that tasks can prepare transactions, before the table is created.

        Raises:
            ConfigurationError: they cannot.
        """
        if mode != "append":
            raise ConfigurationError(
                f"commit=prepared: the stream replaces the rows of the {address.title}, which one "
                "transaction has to do. Remove the option, or append."
            )
        self.check_server(cursor, address)

    @abstractmethod
    def check_server(self, cursor: Cursor, address: Any) -> None:
        """
        Raises:
            ConfigurationError: the server prepares no transactions.
        """

    def set_up(self, cursor: Cursor, dialect: Any, address: Any) -> None:
        """Create the table of prepared transactions if it does not exist.

        Raises:
            AccessRefusedError: the user may not use it.
        """
        if not self.is_there(cursor, address):
            if in_dry_run() and not dialect.has_transactional_ddl:
                return
            dialect.lock_creation(cursor, address)
            cursor.execute(self.ddl.format(table=self.table_sql(address)))
        self.check_rights(cursor, address)

    @abstractmethod
    def is_there(self, cursor: Cursor, address: Any) -> bool:
        """Return True if the table exists. It does if the server keeps a transaction of a task."""

    @abstractmethod
    def check_rights(self, cursor: Cursor, address: Any) -> None:
        """
        Raises:
            AccessRefusedError: the user may not use the table.
        """

    # Transactions -----------------------------------------------------------------------------------

    @abstractmethod
    def table_sql(self, address: Any) -> str:
        """The table's name for statements with parameters. It is in the schema of the fence."""

    @abstractmethod
    def kept(self, cursor: Cursor) -> Sequence[PreparedTransaction]:
        """The transactions of Penstock that the server keeps for this database."""

    def begin(self, cursor: Cursor, transaction_id: str) -> None:
        """Begin the transaction of a task, on a new connection. Databases need this that name a transaction
        when it begins.
        """
        return

    @abstractmethod
    def prepare(self, cursor: Cursor, transaction_id: str) -> None:
        """End the open transaction of a task: the server keeps it."""

    @abstractmethod
    def end(self, connection: Any, transaction_id: str, *, commits: bool) -> None:
        """Commit or roll back a prepared transaction, on a connection that is in no transaction."""

    @abstractmethod
    def finds_none(self, error: Any) -> bool:
        """Return True if `end` has failed because there is no such transaction, or because another session
        has it.
        """

    def end_in_time(
        self, server: DatabaseServer, address: Any, connection: Any, transaction_id: str, *, commits: bool
    ) -> None:
        """See `end`. Return if there is no such transaction. Wait for another session that has it: it is
        ending the transaction, or it has prepared it and is not closed yet.

        Raises:
            RetryableError: the transaction has not ended.
        """
        deadline = time.monotonic() + BUSY_S
        try:
            while True:
                try:
                    self.end(connection, transaction_id, commits=commits)
                    return
                except server.errors as error:
                    if not self.finds_none(error):
                        raise
                if all(one.transaction_id != transaction_id for one in self.kept(connection.cursor())):
                    return
                if time.monotonic() > deadline:
                    raise RetryableError(
                        f"Another session has had the prepared transaction {transaction_id} of the "
                        f"{address.title} for {BUSY_S:.0f} s. It was not ended. {NEXT_TRY}"
                    )
                time.sleep(0.02)
        except server.errors as error:
            raise server.failed(error, "Prepared transactions were not ended") from None

    # Rows of the table ------------------------------------------------------------------------------

    def write(self, cursor: Cursor, address: Any, query_id: str, name: str) -> None:
        """Add the row *written*, in the transaction of a task."""
        self._insert(cursor, address, query_id, [name], is_written=True, commits=True)

    def put_verdicts(
        self, cursor: Cursor, address: Any, query_id: str, names: Iterable[str], *, commits: bool
    ) -> None:
        self._insert(cursor, address, query_id, names, is_written=False, commits=commits)

    def _insert(
        self,
        cursor: Cursor,
        address: Any,
        query_id: str,
        names: Iterable[str],
        *,
        is_written: bool,
        commits: bool,
    ) -> None:
        cursor.executemany(
            f"INSERT INTO {self.table_sql(address)} "
            "(transaction_id, is_written, commits, query_id, table_name) VALUES (%s, %s, %s, %s, %s)",
            [
                (transaction_id(query_id, name), is_written, commits, query_id, address.table)
                for name in names
            ],
        )

    def verdicts(self, cursor: Cursor, address: Any, query_id: str) -> dict[str, bool]:
        """Return for each transaction with a verdict, by name, whether it is committed."""
        return self._rows(cursor, address, query_id, is_written=False)

    def written(self, cursor: Cursor, address: Any, query_id: str) -> set[str]:
        """Return the names of the transactions that are committed, as far as they are not settled."""
        return set(self._rows(cursor, address, query_id, is_written=True))

    def _rows(self, cursor: Cursor, address: Any, query_id: str, *, is_written: bool) -> dict[str, bool]:
        if not self.is_there(cursor, address):
            return {}
        rows = cursor.execute(
            f"SELECT transaction_id, commits FROM {self.table_sql(address)} "
            "WHERE query_id = %s AND table_name = %s AND is_written = %s",
            (query_id, address.table, is_written),
        ).fetchall()
        return {str(one).partition("/")[2]: bool(commits) for one, commits in rows}

    def are_being_committed(self, cursor: Cursor, address: Any) -> bool:
        """Return True if the rows of a batch may be partly visible: its commit has begun and not ended."""
        if not self.is_there(cursor, address):
            return False
        row = cursor.execute(
            f"SELECT 1 FROM {self.table_sql(address)} "
            "WHERE table_name = %s AND is_written = %s AND commits = %s LIMIT 1",
            (address.table, False, True),
        ).fetchone()
        return row is not None

    def forget(self, cursor: Cursor, address: Any, query_id: str, names: Iterable[str]) -> None:
        """Delete verdicts and rows *written*."""
        cursor.executemany(
            f"DELETE FROM {self.table_sql(address)} WHERE transaction_id = %s",
            [(transaction_id(query_id, name),) for name in names],
        )


@dataclass(frozen=True, slots=True)
class PreparedOfQuery:
    """The prepared transactions of one query and table."""

    server: DatabaseServer
    dialect: Any
    """`Dialect`, with `prepared`."""
    address: TableAddress
    query_id: str

    def has_any(self, cursor: Cursor) -> bool:
        """Return True if there are verdicts, or transactions that the server keeps."""
        if not self._sql.is_there(cursor, self.address):
            return False
        return bool(self._kept(cursor) or self._sql.verdicts(cursor, self.address, self.query_id))

    def decide(self, cursor: Cursor, names: Sequence[str]) -> None:
        """Store the verdict "commit", in the transaction that sets the token. It has locked the query's row
        of the fence, and has seen that the server keeps the transactions.

        Raises:
            RetryableError: another process is rolling one back. Nothing was committed.
        """
        verdicts = self._sql.verdicts(cursor, self.address, self.query_id)
        if ending := [name for name in names if name in verdicts]:
            raise RetryableError(
                f"{len(ending)} of {len(names)} prepared transactions of a batch of {self.query_id} for the "
                f"{self.address.title} are being rolled back, first {ending[0]}. The batch was not "
                f"committed. {NEXT_TRY}"
            )
        self._sql.put_verdicts(cursor, self.address, self.query_id, names, commits=True)

    def roll_back(self, table_id: str, names: Iterable[str] | None = None) -> int:
        """Roll back transactions that no commit names; return their number.

        Args:
            table_id: see `Fence.lock`
            names: which ones; None: all of the query
        """
        wanted = None if names is None else set(names)
        with self.server.transaction("Nothing was rolled back") as cursor:
            self.dialect.fence.lock(cursor, self.address, self.query_id, table_id)
            verdicts = self._sql.verdicts(cursor, self.address, self.query_id)
            kept = self._kept(cursor) - set(verdicts)
            orphans = kept if wanted is None else kept & wanted
            self._sql.put_verdicts(cursor, self.address, self.query_id, orphans, commits=False)
        self.settle(table_id)
        return len(orphans)

    def settle(self, table_id: str) -> None:
        """End the transactions that have a verdict.

        Raises:
            TableChangedError: one that was to be committed was rolled back by somebody else.
            RetryableError: one cannot be ended now.
        """
        with self.server.transaction("Prepared transactions were not ended") as cursor:
            verdicts = self._sql.verdicts(cursor, self.address, self.query_id)
            kept = self._kept(cursor)
        if not verdicts:
            return
        self._end({name: commits for name, commits in verdicts.items() if name in kept})
        with self.server.transaction("Prepared transactions are ended, and their verdicts stay") as cursor:
            self.dialect.fence.lock(cursor, self.address, self.query_id, table_id)
            verdicts = self._sql.verdicts(cursor, self.address, self.query_id)
            kept = self._kept(cursor)
            # Read after `kept`: a transaction that is neither kept nor written was rolled back.
            written = self._sql.written(cursor, self.address, self.query_id)
            ended = {name: commits for name, commits in verdicts.items() if name not in kept}
            lost = sorted(name for name, commits in ended.items() if commits and name not in written)
            if not lost:
                self._sql.forget(cursor, self.address, self.query_id, ended)
        if lost:
            raise self._lost(lost, len(verdicts))
        if waiting := sorted(name for name, commits in verdicts.items() if commits and name in kept):
            raise RetryableError(
                f"The last batch of {self.query_id} for the {self.address.title} is committed, but "
                f"{len(waiting)} of its prepared transactions, first {waiting[0]}, cannot be ended now, so "
                f"their rows are not visible yet. {NEXT_TRY}"
            )

    def _end(self, verdicts: Mapping[str, bool]) -> None:
        if not verdicts:
            return
        with closing(self.server.connect()) as connection:
            for name, commits in verdicts.items():
                one = transaction_id(self.query_id, name)
                self._sql.end_in_time(self.server, self.address, connection, one, commits=commits)
                parsed = StagingName.parse(name)
                crash_points.reach("prepared.ended", -1 if parsed is None else parsed.batch_id)

    def _kept(self, cursor: Cursor) -> set[str]:
        prefix = f"{PREFIX}{query_hash(self.query_id, self.address.sql)}_"
        return {
            one.name
            for one in self._sql.kept(cursor)
            if one.query_id == self.query_id and one.name.startswith(prefix)
        }

    def _lost(self, names: Sequence[str], count: int) -> TableChangedError:
        return TableChangedError(
            f"{len(names)} of {count} prepared transactions of the last batch of {self.query_id} for the "
            f"{self.address.title} were rolled back by somebody else after the batch was committed, first "
            f"{names[0]}. Their rows are missing. Restore the table. Or write these rows again by other "
            f"means, and then let the query continue: DELETE FROM {self._sql.table_sql(self.address)} "
            f"WHERE query_id = '{self.query_id}'."
        )

    @property
    def _sql(self) -> PreparedTransactions:
        sql: PreparedTransactions = self.dialect.prepared
        return sql


def names_of(staged: Iterable[StagingTable]) -> list[str]:
    """Return the names of the prepared transactions among the payloads of tasks."""
    return [one.name for one in staged if one.is_prepared]
