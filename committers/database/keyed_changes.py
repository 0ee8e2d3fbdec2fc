"""What a database gives so that rows of its tables can be changed by key. Importable on executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..contract import Changes
from .address import SqlNames
from .contract import Cursor, Mover
from .layout import TableMatch, TableState
from .tombstones import Tombstones, name_prefix


class KeyedChanges(ABC):
    """The changes of one database: `writeMode=upsert`. Has no state."""

    computes_rows: ClassVar[bool] = False
    """True: rows may leave columns as they are, also rows that are messages; and it has `history`."""
    big_type: ClassVar[str] = "bigint"
    """Of a CAST to a whole number of 8 bytes."""

    names: ClassVar[SqlNames]

    def prepare(
        self, cursor: Cursor, address: Any, table: TableState, changes: Changes, match: TableMatch
    ) -> None:
        """See `check_table`; then create what changes need. Part of a plan.

        Args:
            changes: with names of columns of the table

        Raises:
            TableNotSupportedError: it cannot.
        """
        self.check_table(cursor, address, table, changes)

    @abstractmethod
    def check_table(self, cursor: Cursor, address: Any, table: TableState, changes: Changes) -> None:
        """Check that the table can be changed by key. A commit checks it again, in its transaction.

        Raises:
            TableNotSupportedError: it cannot.
        """

    def accept(self, cursor: Cursor, address: Any, before: str, now: str) -> None:
        """Let the deleted keys of a table count for the one that took its place.

        Args:
            before, now: their ids
        """
        return

    # Statements -------------------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        """Quote an identifier."""
        return self.names.quoted(name)

    def compared(self, expression: str, kind: str) -> str:
        """The expression in a form whose values are compared by their bytes if they are text."""
        return expression

    def staged_value(self, name: str, kind: str) -> str:
        """A column of the key or the order in a staging table, so that equal values are equal texts."""
        return name

    def differ(self, columns: Sequence[tuple[str, str]]) -> str:
        """The condition that rows of a group differ.

        Args:
            columns: name in SQL and type
        """
        return " OR ".join(
            f"count(DISTINCT {one}) > 1 OR count({one}) NOT IN (0, count(*))"
            for one in (self.told_apart(name, kind) for name, kind in columns)
        )

    def told_apart(self, expression: str, kind: str) -> str:
        """The expression in a form of which different values are not equal, as 0.0 and -0.0 are."""
        return expression


class TransactionalChanges(KeyedChanges):
    """The changes of a database that commits a batch in one transaction, with the rows that it replaces."""

    id_column: ClassVar[str] = "table_id"
    """Column of the tombstones with the id of the table."""
    tombstone_type: ClassVar[type[Tombstones]]

    def prepare(
        self, cursor: Cursor, address: Any, table: TableState, changes: Changes, match: TableMatch
    ) -> None:
        super().prepare(cursor, address, table, changes, match)
        if (deleted := self.tombstones_of(address, table, changes, match)) is not None:
            deleted.create(cursor)

    @abstractmethod
    def mover_of(self, changes: Changes) -> Callable[..., Mover]:
        """A `changing.RowChanger`, which moves the rows of a batch."""

    def accept(self, cursor: Cursor, address: Any, before: str, now: str) -> None:
        if before == now:
            return
        for name in self.tables_named(cursor, address, name_prefix(address)):
            table = self.names.qualified(address.schema, name).replace("%", "%%")
            cursor.execute(
                f"UPDATE {table} SET {self.id_column} = %s WHERE {self.id_column} = %s", (now, before)
            )

    @abstractmethod
    def tables_named(self, cursor: Cursor, address: Any, prefix: str) -> Sequence[str]:
        """The names of tables in the schema of a table that begin so."""

    # Statements -------------------------------------------------------------------------------------

    def tombstones(self, address: Any, table_id: str, changes: Changes, types: dict[str, str]) -> Tombstones:
        """See `Tombstones`."""
        return self.tombstone_type(self, address, table_id, changes, types)

    def tombstones_of(
        self, address: Any, table: TableState, changes: Changes, match: TableMatch
    ) -> Tombstones | None:
        """The tombstones that a batch needs, in its plan."""
        if changes.late_rows != "ignore":
            return None
        types = {column.name: column.sql_type for column in match.columns}
        return self.tombstones(address, table.table_id, changes, types)

    @abstractmethod
    def widest(self, kind: str) -> str:
        """The SQL type that stores the values of this one, and those after a column of it was widened."""

    def same(self, stored: str, given: str, kind: str) -> str:
        """The condition that a key of a table is that of a row."""
        return f"{stored} = {given}"

    def at_least(self, new: Sequence[str], old: Sequence[str], kinds: Sequence[str]) -> str:
        """The condition that an order is not before another one, column by column. An old NULL is before
        all.
        """
        condition = "1 = 1"
        for one, other, kind in reversed(list(zip(new, old, kinds, strict=True))):
            one, other = self.compared(one, kind), self.compared(other, kind)
            condition = f"({one} > {other} OR {other} IS NULL OR ({one} = {other} AND {condition}))"
        return condition

    def delete_joined(self, table: str, rows: str, condition: str, where: str) -> str:
        """The statement that deletes the rows of a table for which there is a row.

        Args:
            table, rows: name and alias
            condition: on both
            where: on the rows
        """
        return f"DELETE FROM {table} USING {rows} WHERE {condition} AND {where}"

    def update_joined(self, table: str, rows: str, names: Sequence[str], condition: str, where: str) -> str:
        """The statement that gives rows `t` of a table the values of rows `n`.

        Args:
            table, rows: name and alias
            names: of the columns, in SQL
            condition, where: see `delete_joined`
        """
        values = ", ".join(f"{name} = n.{name}" for name in names)
        return f"UPDATE {table} SET {values} FROM {rows} WHERE {condition} AND {where}"
