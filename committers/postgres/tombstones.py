"""Tombstones: the deleted keys of a table with their order, so that an older row does not bring them back.

They are in a table beside the destination, written in the transaction that deletes, and removed when a newer
row has the key or `expires_at` has passed. A commit looks up the keys of its batch by the primary key,
whatever the planner believes of the sizes, and never reads all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..database import tombstones
from ..database.contract import Cursor
from ..database.tombstones import PRUNED_MIN
from .address import literal, quoted
from .types import compared


@dataclass(frozen=True, slots=True)
class Tombstones(tombstones.Tombstones):
    """See `tombstones.Tombstones`. A commit creates and widens the table, too. It looks up the keys of its
    batch by the primary key, whatever the planner believes of the sizes, and never reads all of them.
    """

    def create(self, cursor: Cursor) -> None:
        """Create the table unless it exists. A key that has been widened is widened here."""
        wanted = dict(self.columns())
        there = cursor.execute(_COLUMNS, (self.sql,)).fetchall()
        for name, kind in there:
            if wanted.get(name, kind) != kind:
                cursor.execute(f"ALTER TABLE {self.sql} ALTER COLUMN {name} TYPE {wanted[name]}")
        if there:
            return
        columns = ", ".join(f"{compared(f'{name} {kind}', kind)} NOT NULL" for name, kind in wanted.items())
        keys = ", ".join(self.keys())
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (self.sql,))
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self.sql} (table_oid oid NOT NULL, {columns}, "
            f"expires_at timestamptz NOT NULL, PRIMARY KEY (table_oid, {keys}))"
        )
        cursor.execute(f"CREATE INDEX IF NOT EXISTS {quoted(f'{self.name}_t')} ON {self.sql} (expires_at)")
        what = literal(f"penstock, deleted keys of {self.address.sql}: {', '.join(self.changes.keys)}")
        cursor.execute(f"COMMENT ON TABLE {self.sql} IS {what}")

    def begin(self, cursor: Cursor) -> None:
        self.create(cursor)
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", (self.sql,))

    # Conditions on rows `n` of the changes ----------------------------------------------------------

    def is_not_older(self) -> str:
        """True unless the key was deleted by a newer row. A scalar subquery is not made a join."""
        return f"coalesce((SELECT {self.is_late_enough()} FROM {self.sql} AS b WHERE {self.is_key()}), true)"

    def add(self, cursor: Cursor, relation: str, where: str) -> int:
        sets = ", ".join(f"{name} = excluded.{name}" for name in (*self.order(), "expires_at"))
        cursor.execute(
            f"INSERT INTO {self.sql} ({self.names}) SELECT {self.values} "
            f"FROM {relation} AS n WHERE {where} AND {self.is_not_older()} "
            f"ON CONFLICT (table_oid, {', '.join(self.keys())}) DO UPDATE SET {sets}"
        )
        return cursor.rowcount

    def remove(self, cursor: Cursor, relation: str, where: str) -> None:
        cursor.execute(
            f"DELETE FROM {self.sql} WHERE ctid = ANY (ARRAY(SELECT old.ctid FROM {relation} AS n "
            f"CROSS JOIN LATERAL (SELECT b.ctid FROM {self.sql} AS b "
            f"WHERE {self.is_key()} AND {self.is_late_enough()} OFFSET 0) AS old WHERE {where}))"
        )

    def prune(self, cursor: Cursor, added: int) -> None:
        cursor.execute(
            f"DELETE FROM {self.sql} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {self.sql} "
            f"WHERE expires_at < now() ORDER BY expires_at LIMIT {max(PRUNED_MIN, 2 * added)}))"
        )

    @property
    def id_sql(self) -> str:
        return f"{int(self.table_id)}::oid"

    @property
    def until(self) -> str:
        return f"now() + interval '{self.changes.tombstones_s:f} seconds'"


_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""
