"""Tombstones: the deleted keys of a table with their order, so that an older row does not bring them back.

They are in a table beside the destination, written in the transaction that deletes, and removed when a newer
row has the key or `expires_at` has passed. A commit looks up the keys of its batch by the primary key,
whatever the planner believes of the sizes, and never reads all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from ..contract import Changes
from ..database.contract import Cursor
from .address import PostgresAddress, literal, qualified, quoted
from .types import compared, widest

PREFIX = "penstock_deleted_"
PRUNED_MIN = 5_000
"""Expired tombstones that a commit removes at least, if there are as many. It removes twice as many as it has
added if those are more, so that a table with many deletions does not grow for ever.
"""


@dataclass(frozen=True, slots=True)
class Tombstones:
    """The deleted keys of one table, for changes with the same keys and order.

    Args:
        table_id: OID of the table. Keys that were deleted from an earlier table of the name do not count
        types: SQL type by column, of the staging tables
    """

    address: PostgresAddress
    table_id: str
    changes: Changes
    types: dict[str, str]

    @property
    def sql(self) -> str:
        return qualified(self.address.schema, self._name)

    @property
    def _name(self) -> str:
        named = " ".join(map(quoted, (*self.changes.keys, "", *self.changes.order_by)))
        return f"{name_prefix(self.address)}{_hash(named)}"

    def create(self, cursor: Cursor) -> None:
        """Create the table unless it exists. A key that has been widened is widened here."""
        wanted = dict(self._columns())
        there = cursor.execute(_COLUMNS, (self.sql,)).fetchall()
        for name, kind in there:
            if wanted.get(name, kind) != kind:
                cursor.execute(f"ALTER TABLE {self.sql} ALTER COLUMN {name} TYPE {wanted[name]}")
        if there:
            return
        columns = ", ".join(f"{compared(f'{name} {kind}', kind)} NOT NULL" for name, kind in wanted.items())
        keys = ", ".join(self._keys())
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (self.sql,))
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self.sql} (table_oid oid NOT NULL, {columns}, "
            f"expires_at timestamptz NOT NULL, PRIMARY KEY (table_oid, {keys}))"
        )
        cursor.execute(f"CREATE INDEX IF NOT EXISTS {quoted(f'{self._name}_t')} ON {self.sql} (expires_at)")
        what = literal(f"penstock, deleted keys of {self.address.sql}: {', '.join(self.changes.keys)}")
        cursor.execute(f"COMMENT ON TABLE {self.sql} IS {what}")

    def lock(self, cursor: Cursor) -> None:
        """Wait for other queries that change the table, until this transaction ends: one that deletes a key
        and one that inserts an older row of it must see each other.
        """
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", (self.sql,))

    # Conditions on rows `n` of the changes ----------------------------------------------------------

    def is_not_older(self) -> str:
        """True unless the key was deleted by a newer row. A scalar subquery is not made a join."""
        return (
            f"coalesce((SELECT {self._is_late_enough()} FROM {self.sql} AS b WHERE {self._is_key()}), true)"
        )

    def add(self, cursor: Cursor, relation: str, where: str) -> int:
        """Add tombstones for rows `n` of a relation that are not older than one; return their number."""
        names = ", ".join(("table_oid", *self._keys(), *self._order(), "expires_at"))
        values = ", ".join(f"n.{quoted(name)}" for name in (*self.changes.keys, *self.changes.order_by))
        until = f"now() + interval '{self.changes.tombstones_s:f} seconds'"
        sets = ", ".join(f"{name} = excluded.{name}" for name in (*self._order(), "expires_at"))
        cursor.execute(
            f"INSERT INTO {self.sql} ({names}) SELECT {self._oid}, {values}, {until} "
            f"FROM {relation} AS n WHERE {where} AND {self.is_not_older()} "
            f"ON CONFLICT (table_oid, {', '.join(self._keys())}) DO UPDATE SET {sets}"
        )
        return cursor.rowcount

    def remove(self, cursor: Cursor, relation: str, where: str) -> None:
        """Remove tombstones that newer rows `n` of a relation make needless."""
        cursor.execute(
            f"DELETE FROM {self.sql} WHERE ctid = ANY (ARRAY(SELECT old.ctid FROM {relation} AS n "
            f"CROSS JOIN LATERAL (SELECT b.ctid FROM {self.sql} AS b "
            f"WHERE {self._is_key()} AND {self._is_late_enough()} OFFSET 0) AS old WHERE {where}))"
        )

    def prune(self, cursor: Cursor, added: int) -> None:
        """Remove expired tombstones, some thousands at a time."""
        cursor.execute(
            f"DELETE FROM {self.sql} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {self.sql} "
            f"WHERE expires_at < now() ORDER BY expires_at LIMIT {max(PRUNED_MIN, 2 * added)}))"
        )

    @property
    def _oid(self) -> str:
        return f"{int(self.table_id)}::oid"

    def _keys(self) -> list[str]:
        return [f"key_{number}" for number in range(1, len(self.changes.keys) + 1)]

    def _order(self) -> list[str]:
        return [f"order_{number}" for number in range(1, len(self.changes.order_by) + 1)]

    def _columns(self) -> list[tuple[str, str]]:
        names = zip(
            chain(self._keys(), self._order()), (*self.changes.keys, *self.changes.order_by), strict=True
        )
        return [(own, widest(self.types[name])) for own, name in names]

    def _is_key(self) -> str:
        pairs = zip(self._keys(), self.changes.keys, strict=True)
        return f"b.table_oid = {self._oid} AND " + " AND ".join(
            f"b.{own} = n.{quoted(name)}" for own, name in pairs
        )

    def _is_late_enough(self) -> str:
        new = [f"n.{quoted(name)}" for name in self.changes.order_by]
        old = [f"b.{name}" for name in self._order()]
        return at_least(new, old, [self.types[name] for name in self.changes.order_by])


_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


_TABLES = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND starts_with(c.relname, %s) AND c.relkind = 'r'
"""


def accept(cursor: Cursor, address: PostgresAddress, before: str, now: str) -> None:
    """Let the deleted keys of a table count for the one that took its place.

    Args:
        before, now: OIDs of the tables
    """
    if before == now:
        return
    for (name,) in cursor.execute(_TABLES, (address.schema, name_prefix(address))).fetchall():
        change = f"UPDATE {qualified(address.schema, name)} SET table_oid = {int(now)}"
        cursor.execute(f"{change} WHERE table_oid = {int(before)}")


def name_prefix(address: PostgresAddress) -> str:
    """The beginning of the names of all tables with deleted keys of one table."""
    return f"{PREFIX}{_hash(address.sql)}_"


def at_least(new: Sequence[str], old: Sequence[str], types: Sequence[str]) -> str:
    """The condition that an order is not before another one, column by column. An old NULL is before all."""
    condition = "true"
    for one, other, kind in reversed(list(zip(new, old, types, strict=True))):
        one, other = compared(one, kind), compared(other, kind)
        condition = f"({one} > {other} OR {other} IS NULL OR ({one} = {other} AND {condition}))"
    return condition


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
