"""Tombstones: the deleted keys of a table with their order, so that an older row does not bring them back.

They are in a table beside the destination, written in the transaction that deletes, and removed when a newer
row has the key or `expires_at` has passed.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ..contract import Changes
from ..errors import ManifestCorruptError
from .contract import Cursor

PREFIX = "penstock_deleted_"
PRUNED_MIN = 5_000
"""Expired tombstones that a commit removes at least, if there are as many. It removes twice as many as it has
added if those are more, so that a table with many deletions does not grow for ever.
"""


@dataclass(frozen=True, slots=True)
class Tombstones(ABC):
    """The deleted keys of one table, for changes with the same keys and order. The columns are
    `own.id_column`, those of `columns`, and `expires_at`.

    Args:
        own: `TransactionalChanges` of the database
        table_id: id of the table. Keys that were deleted from an earlier table of the name do not count
        types: SQL type by column, of the staging tables
    """

    own: Any
    address: Any
    table_id: str
    changes: Changes
    types: dict[str, str]

    @abstractmethod
    def create(self, cursor: Cursor) -> None:
        """Create the table unless it exists. Part of a plan. A key that has been widened is widened here."""

    @abstractmethod
    def begin(self, cursor: Cursor) -> None:
        """Wait for other queries that change the table, until this transaction ends: one that deletes a key
        and one that inserts an older row of it must see each other.
        """

    @abstractmethod
    def prune(self, cursor: Cursor, added: int) -> None:
        """Remove expired tombstones.

        Args:
            added: how many the commit has added
        """

    @property
    @abstractmethod
    def until(self) -> str:
        """When a tombstone of now expires, in SQL."""

    @property
    def sql(self) -> str:
        return str(self.own.names.qualified(self.address.schema, self.name))

    @property
    def name(self) -> str:
        named = " ".join(map(self.own.quoted, (*self.changes.keys, "", *self.changes.order_by)))
        return f"{name_prefix(self.address)}{_hash(named)}"

    # Rows `n` of the changes ------------------------------------------------------------------------

    def is_not_older(self) -> str:
        """The condition that no newer row has deleted the key."""
        newer = f"{self.is_key()} AND NOT {self.is_late_enough()}"
        return f"NOT EXISTS (SELECT 1 FROM {self.sql} b WHERE {newer})"

    def add(self, cursor: Cursor, relation: str, where: str) -> int:
        """Add tombstones for rows `n` of a relation that are not older than one; return their number."""
        self.remove(cursor, relation, where)
        there = f"SELECT 1 FROM {self.sql} b WHERE {self.is_key()}"
        cursor.execute(
            f"INSERT INTO {self.sql} ({self.names}) SELECT {self.values} FROM {relation} n "
            f"WHERE {where} AND NOT EXISTS ({there})"
        )
        return cursor.rowcount

    def remove(self, cursor: Cursor, relation: str, where: str) -> None:
        """Remove tombstones that newer rows `n` of a relation make needless."""
        condition = f"{self.is_key()} AND {self.is_late_enough()}"
        cursor.execute(self.own.delete_joined(f"{self.sql} b", f"{relation} n", condition, where))

    # Columns ----------------------------------------------------------------------------------------

    def keys(self) -> list[str]:
        return [f"key_{number}" for number in range(1, len(self.changes.keys) + 1)]

    def order(self) -> list[str]:
        return [f"order_{number}" for number in range(1, len(self.changes.order_by) + 1)]

    def columns(self) -> list[tuple[str, str]]:
        """Name and SQL type of keys and order."""
        own = (*self.keys(), *self.order())
        names = (*self.changes.keys, *self.changes.order_by)
        return [(one, self.own.widest(self.types[name])) for one, name in zip(own, names, strict=True)]

    def is_key(self) -> str:
        """The condition that the tombstone `b` has the key of `n`."""
        pairs = zip(self.keys(), self.changes.keys, strict=True)
        return f"b.{self.own.id_column} = {self.id_sql} AND " + " AND ".join(
            self.own.same(f"b.{own}", f"n.{self.own.quoted(name)}", self.types[name]) for own, name in pairs
        )

    def is_late_enough(self) -> str:
        """The condition that `n` is not older than the tombstone `b`."""
        new = [f"n.{self.own.quoted(name)}" for name in self.changes.order_by]
        old = [f"b.{name}" for name in self.order()]
        return str(self.own.at_least(new, old, [self.types[name] for name in self.changes.order_by]))

    @property
    def id_sql(self) -> str:
        """The id of the table in SQL. It may come from a manifest."""
        return f"'{check_id(self.table_id)}'"

    @property
    def names(self) -> str:
        """All columns."""
        return ", ".join((self.own.id_column, *self.keys(), *self.order(), "expires_at"))

    @property
    def values(self) -> str:
        """Their values for a row `n`."""
        names = (*self.changes.keys, *self.changes.order_by)
        return ", ".join((self.id_sql, *(f"n.{self.own.quoted(name)}" for name in names), self.until))


def name_prefix(address: Any) -> str:
    """The beginning of the names of all tables with deleted keys of one table."""
    return f"{PREFIX}{_hash(address.sql)}_"


def check_id(table_id: str) -> str:
    """
    Raises:
        ManifestCorruptError: it is no id that Penstock has given to a table.
    """
    if re.fullmatch("[0-9a-f]*", table_id) is None:
        raise ManifestCorruptError(f"{table_id!r:.50} is no id of a table. Nothing was committed.")
    return table_id


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
