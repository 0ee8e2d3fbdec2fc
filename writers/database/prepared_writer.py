"""Writes the rows of a task attempt to the table itself, in a transaction that it prepares. Executors only.

See `committers.database.prepared` for the order of steps.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ...committers.database.prepared import PreparedTransactions, transaction_id
from ...committers.database.staging import StagingTable
from ...committers.errors import NEXT_TRY, RetryableError
from .staging_writer import StagingWriters


@dataclass(frozen=True)  # no slots: with a second base, Python 3.10 cannot lay them out
class PreparedWriters(StagingWriters):
    """See `StagingWriters`. The schema of the payloads is `PREPARED`. A database adds how rows are loaded."""

    table_uri: str = ""
    table_id: str = ""
    """The table's id when the batch was planned."""

    @property
    def prepared(self) -> PreparedTransactions:
        assert self.dialect.prepared is not None
        return self.dialect.prepared

    def create(self, cursor: Any, staged: StagingTable, query_id: str) -> None:
        """Begin the transaction, and check the table, which stays locked until the transaction ends. The
        rows were encoded for the types of its columns: in binary form, microseconds of another type would be
        stored as another value.
        """
        address = self.dialect.address_of(self.table_uri)
        self.prepared.begin(cursor, transaction_id(query_id, staged.name))
        self.dialect.lock_table(cursor, address)
        table = self.dialect.load(cursor, address)
        types = {} if table is None else {column.name: column.sql_type for column in table.columns}
        planned = dict(zip(self.staged_names, self.sql_types, strict=True))
        if table is None or table.table_id != self.table_id or not planned.items() <= types.items():
            raise RetryableError(
                f"The {address.title} was altered, or created again, since the batch was planned. The rows "
                f"of this task were not written. {NEXT_TRY}"
            )
        self.prepared.write(cursor, address, query_id, staged.name)

    def end(self, connection: Any, staged: StagingTable, query_id: str) -> None:
        self.prepared.prepare(connection.cursor(), transaction_id(query_id, staged.name))

    def undo(self, staged: StagingTable, query_id: str) -> None:
        address = self.dialect.address_of(self.table_uri)
        with closing(self.server.connect()) as connection:
            one = transaction_id(query_id, staged.name)
            self.prepared.end_in_time(self.server, address, connection, one, commits=False)
