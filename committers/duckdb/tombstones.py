"""Tombstones of a DuckDB table."""

from __future__ import annotations

from dataclasses import dataclass

from ..database import tombstones
from ..database.contract import Cursor
from .address import DATABASE

_COLUMNS = (
    "SELECT column_name, data_type FROM duckdb_columns() "
    f"WHERE database_name = '{DATABASE}' AND lower(schema_name) = %s AND table_name = %s"
)


@dataclass(frozen=True, slots=True)
class Tombstones(tombstones.Tombstones):
    """See `tombstones.Tombstones`. The table has no index, since DuckDB joins it with the keys of a batch."""

    def create(self, cursor: Cursor) -> None:
        wanted = dict(self.columns())
        there = cursor.execute(_COLUMNS, (self.address.schema, self.name)).fetchall()
        for name, kind in there:
            if wanted.get(name, kind) != kind:
                cursor.execute(f"ALTER TABLE {self.sql} ALTER COLUMN {name} TYPE {wanted[name]}")
        if not there:
            columns = ", ".join(f"{name} {kind} NOT NULL" for name, kind in wanted.items())
            cursor.execute(
                f"CREATE TABLE IF NOT EXISTS {self.sql} ({self.own.id_column} VARCHAR NOT NULL, {columns}, "
                "expires_at TIMESTAMP WITH TIME ZONE NOT NULL)"
            )

    def begin(self, cursor: Cursor) -> None:
        """Nothing: of two commits at once one fails. See `DuckDbFence.touch`."""

    def prune(self, cursor: Cursor, added: int) -> None:
        cursor.execute(f"DELETE FROM {self.sql} WHERE expires_at < now()")

    @property
    def until(self) -> str:
        return f"now() + to_microseconds({int(self.changes.tombstones_s * 1_000_000)})"
