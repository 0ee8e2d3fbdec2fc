"""Loads rows into the table itself, in a transaction that the task prepares. Executors only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...committers.database.staging import StagingTable
from ...committers.errors import NEXT_TRY, RetryableError, TableNotSupportedError
from ...committers.postgres.address import quoted
from ..database.prepared_writer import PreparedWriters
from .staging_writer import PostgresStagingWriters, copy_rows

_NOT_SUPPORTED, _TOO_MANY = "0A000", "53200"
"""SQLSTATEs: feature_not_supported, out_of_memory (of the places for prepared transactions)."""


@dataclass(frozen=True, slots=True)
class PostgresPreparedWriters(PreparedWriters, PostgresStagingWriters):
    """See `PreparedWriters`."""

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
            PreparedWriters.end(self, connection, staged, query_id)
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
