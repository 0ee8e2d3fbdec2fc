"""Loads rows into tables of MySQL. Executors only.

With LOAD DATA LOCAL, from memory; with INSERT where the server does not allow that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ...committers.database.staging import StagingTable
from ...committers.errors import SchemaMismatchError
from ...committers.mysql.address import quoted
from ...committers.mysql.dialect import DIALECT
from ..database.staging_writer import StagingWriters
from .text_rows import TextRows, check_lengths, text_rows

PACKET_BYTES_MAX = 4 * 1024 * 1024
"""Of an INSERT. Larger ones are not faster."""
_ROOM_BYTES = 64 * 1024
"""For the rest of the statement."""


@dataclass(frozen=True, slots=True)
class MySqlStagingWriters(StagingWriters):
    """See `StagingWriters`."""

    def check(self, rows: pa.RecordBatch) -> None:
        """See `StagingWriters`. `encode` checks all."""

    def encode(self, rows: pa.RecordBatch) -> TextRows:
        for array, name, kind in zip(rows.columns, rows.schema.names, self.sql_types, strict=True):
            check_lengths(array, name, kind)
        return text_rows(rows)

    def create(self, cursor: Any, staged: StagingTable, query_id: str) -> None:
        columns = list(zip(self.staged_names, self.sql_types, strict=True))
        DIALECT.create_staging(cursor, staged, columns, query_id)

    def loaded_sql(self, staged: StagingTable) -> str:
        """The table into which rows are loaded."""
        return DIALECT.staged_sql(staged)

    def load(self, connection: Any, staged: StagingTable, rows: TextRows, count: int) -> None:
        """See `StagingWriters`."""
        from ...committers.mysql.connection import is_without_local

        if connection.loads_rows:
            try:
                loaded = connection.load(self._load_statement(staged, rows), rows.lines())
            except self.server.errors as error:
                if not is_without_local(error):
                    raise
                connection.loads_rows = False
            else:
                _check_count(loaded, count, self.loaded_sql(staged))
                return
        names = ", ".join(map(quoted, self.staged_names))
        begin = f"INSERT INTO {self.loaded_sql(staged)} ({names}) VALUES ".encode()
        ((most,),) = connection.cursor().execute("SELECT @@max_allowed_packet").fetchall()
        size = min(int(most) - _ROOM_BYTES, PACKET_BYTES_MAX)
        _check_count(
            sum(connection.query(begin + some) for some in rows.values(size)), count, self.loaded_sql(staged)
        )

    def _load_statement(self, staged: StagingTable, rows: TextRows) -> str:
        fields, sets = [], []
        for number, (name, is_hex) in enumerate(zip(self.staged_names, rows.binaries, strict=True)):
            fields.append(f"@c{number}" if is_hex else quoted(name))
            if is_hex:
                sets.append(f"{quoted(name)} = UNHEX(@c{number})")
        return (
            f"LOAD DATA LOCAL INFILE 'penstock' INTO TABLE {self.loaded_sql(staged)} "
            "CHARACTER SET utf8mb4 FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' "
            f"({', '.join(fields)}){' SET ' if sets else ''}{', '.join(sets)}"
        )


def _check_count(loaded: int, count: int, table: str) -> None:
    if loaded != count:
        raise SchemaMismatchError(
            f"The server has stored {loaded:,} of {count:,} rows in the table {table}. The rows of this task "
            "were not staged."
        )
