"""Tombstones of a table of `penstock.sql`."""

from __future__ import annotations

from dataclasses import dataclass

from ..database import tombstones
from ..database.contract import Cursor
from .backends import BACKENDS, Backend
from .fence import SqlFence
from .schema import create_table, names_in, type_sql


@dataclass(frozen=True, slots=True)
class Tombstones(tombstones.Tombstones):
    """See `tombstones.Tombstones`."""

    def create(self, cursor: Cursor) -> None:
        own, name = cursor.connection.own, self.address.backend_name
        if self.name in names_in(own, self.address.schema):
            return
        kinds = [(self.own.id_column, "varchar(64)"), *self.columns()]
        columns = [f"{column} {type_sql(kind, name)} NOT NULL" for column, kind in kinds]
        columns.append(f"expires_at {SqlFence(name, self._backend).column_types['committed_at']} NOT NULL")
        columns.append(f"PRIMARY KEY ({', '.join((self.own.id_column, *self.keys()))})")
        what = f"penstock, deleted keys of {self.address.sql}"[:200]
        create_table(own, self.address.schema, self.name, columns, what)

    def begin(self, cursor: Cursor) -> None:
        """See `tombstones.Tombstones`. The row of no query in the fence table is locked."""
        SqlFence(self.address.backend_name, self._backend).lock(cursor, self.address, "", "")

    def prune(self, cursor: Cursor, added: int) -> None:
        cursor.execute(f"DELETE FROM {self.sql} WHERE expires_at < {self._backend.now}")

    @property
    def until(self) -> str:
        return self._backend.seconds_later.format(f"{self.changes.tombstones_s:f}")

    @property
    def _backend(self) -> Backend:
        return BACKENDS[self.address.backend_name]
