"""Loads rows into staging tables of Postgres. Executors only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...committers.database.staging import StagingTable
from ...committers.postgres.address import quoted
from ...committers.postgres.dialect import DIALECT
from ..database.staging_writer import StagingWriters
from .copy_binary import HEADER, TRAILER, copy_binary
from .text_checks import check_texts, has_limits


@dataclass(frozen=True, slots=True)
class PostgresStagingWriters(StagingWriters):
    """See `StagingWriters`."""

    def check(self, rows: pa.RecordBatch) -> None:
        for number, kind in enumerate(self.sql_types):
            if has_limits(kind):
                check_texts(rows.column(number), rows.schema.names[number], kind)

    def encode(self, rows: pa.RecordBatch) -> pa.Buffer:
        return copy_binary(rows, self.sql_types, self.encoding)

    def create(self, cursor: Any, staged: StagingTable, query_id: str) -> None:
        columns = ", ".join(
            f"{quoted(name)} {kind}" for name, kind in zip(self.staged_names, self.sql_types, strict=True)
        )
        DIALECT.create_staging(cursor, staged, f"({columns}) WITH (autovacuum_enabled = false)", query_id)

    def load(self, connection: Any, staged: StagingTable, rows: pa.Buffer, count: int) -> None:
        """FREEZE: the commit, which reads the rows, then need not check their visibility and write hint bits.
        It is allowed in the transaction that has created the table.
        """
        copy_rows(connection, f"COPY {DIALECT.staged_sql(staged)} FROM STDIN (FORMAT binary, FREEZE)", rows)


def copy_rows(connection: Any, statement: str, rows: pa.Buffer) -> int:
    """Send encoded rows; return how many were stored."""
    with connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for part in (HEADER, memoryview(rows), TRAILER):
                copy.write(part)
        return int(cursor.rowcount)
