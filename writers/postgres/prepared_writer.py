"""Loads rows into the table itself, in a transaction that the task prepares. Executors only.

See `committers.database.prepared` for the order of steps.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...committers.database.prepared import transaction_id
from ...committers.database.staging import StagingTable
from ...committers.errors import NEXT_TRY, RetryableError, TableNotSupportedError
from ...committers.postgres.address import PostgresAddress, quoted
from ...committers.postgres.dialect import DIALECT
from ...committers.postgres.prepared import prepare
from .staging_writer import PostgresStagingWriters, copy_rows

_NOT_SUPPORTED, _TOO_MANY = "0A000", "53200"
"""SQLSTATEs: feature_not_supported, out_of_memory (of the places for prepared transactions)."""


@dataclass(frozen=True, slots=True)
class PreparedWriters(PostgresStagingWriters):
    """See `StagingWriters`. The schema of the payloads is `PREPARED`."""

    table_uri: str = ""
    table_id: str = ""
    """The table's OID when the batch was planned."""

    def create(self, cursor: Any, staged: StagingTable, query_id: str) -> None:
        """Check the table, which stays locked until the transaction ends. The binary form of a value depends
        on the type of its column: microseconds of another type would be stored as another value.
        """
        address = PostgresAddress.parse(self.table_uri)
        DIALECT.lock_table(cursor, address)
        table = DIALECT.load(cursor, address)
        types = {} if table is None else {column.name: column.sql_type for column in table.columns}
        planned = dict(zip(self.staged_names, self.sql_types, strict=True))
        if table is None or table.table_id != self.table_id or not planned.items() <= types.items():
            raise RetryableError(
                f"The {address.title} was altered, or created again, since the batch was planned. The rows "
                f"of this task were not written. {NEXT_TRY}"
            )
        DIALECT.prepared.write(cursor, address, query_id, staged.name)

    def load(self, connection: Any, staged: StagingTable, rows: pa.Buffer, count: int) -> None:
        columns = ", ".join(map(quoted, self.staged_names))
        stored = copy_rows(connection, f"COPY {self.table_sql} ({columns}) FROM STDIN (FORMAT binary)", rows)
        if stored != count:
            raise TableNotSupportedError(
                f"The Postgres table {self.table_uri} has stored {stored} of {count} rows: a trigger drops "
                "rows. The rows of this task were not written. Disable the trigger."
            )

    def end(self, connection: Any, staged: StagingTable, query_id: str) -> None:
        try:
            prepare(connection.cursor(), transaction_id(query_id, staged.name))
        except self.server.errors as error:
            said = self.server.in_short(error)
            if self.server.code(error) == _NOT_SUPPORTED:  # NOTIFY, or temporary tables
                raise TableNotSupportedError(
                    f"A trigger of the Postgres table {self.table_uri} does what a prepared transaction "
                    f"cannot: {said}. The rows of this task were not written. Remove commit=prepared."
                ) from None
            if self.server.code(error) == _TOO_MANY:
                raise RetryableError(
                    f"The server of the Postgres table {self.table_uri} cannot keep another prepared "
                    f"transaction: {said}. Each task of a batch needs one until the batch is committed. "
                    "Raise max_prepared_transactions, use fewer partitions (df.coalesce), or remove "
                    f"commit=prepared. {NEXT_TRY}"
                ) from None
            raise

    def undo(self, staged: StagingTable, query_id: str) -> None:
        with closing(self.server.connect()) as connection:
            try:
                DIALECT.prepared.end(connection, transaction_id(query_id, staged.name), commits=False)
            except self.server.errors as error:
                if not (DIALECT.prepared.has_ended(error) or DIALECT.prepared.is_busy(error)):
                    raise self.server.failed(
                        error, "The prepared transaction is left to penstock gc"
                    ) from None
