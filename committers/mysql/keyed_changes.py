"""The changes by key of MySQL and MariaDB. See `KeyedChanges`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..contract import Changes
from ..database.changing import LAST_ROWS
from ..database.contract import Cursor
from ..database.keyed_changes import TransactionalChanges
from ..database.layout import TableState
from ..errors import AccessRefusedError
from . import types as rules
from .address import NAMES, MySqlAddress, quoted
from .changes import MySqlChanger
from .tombstones import Tombstones
from .unique_keys import check_unique

_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name LIKE %s"


class MySqlChanges(TransactionalChanges):
    """See `KeyedChanges`. Texts are compared by their bytes, since those of staging tables, keys and
    tombstones have such a collation.
    """

    big_type = "signed"
    names = NAMES
    tombstone_type = Tombstones

    def check_table(self, cursor: Cursor, address: MySqlAddress, table: TableState, changes: Changes) -> None:
        check_unique(cursor, address, changes.keys)

    def mover_of(self, changes: Changes) -> type[MySqlChanger]:
        return MySqlChanger

    def tables_named(self, cursor: Cursor, address: MySqlAddress, prefix: str) -> Sequence[str]:
        pattern = prefix.replace("_", "\\_") + "%"
        rows = cursor.execute(_TABLES, (address.schema, pattern)).fetchall()
        return [rules.text_of(name) for (name,) in rows]

    # Statements -------------------------------------------------------------------------------------

    def widest(self, kind: str) -> str:
        return rules.widest(kind)

    def normalized(self, kind: Any) -> str:
        return rules.normalized(rules.text_of(kind))

    def definition(self, cursor: Cursor, kind: str) -> str:
        """A column whose texts are compared by their bytes."""
        return f"{kind} COLLATE {cursor.connection.text_collation}" if rules.is_text(kind) else kind

    def compared(self, expression: str, kind: str) -> str:
        return f"CAST(CONVERT({expression} USING utf8mb4) AS binary)" if rules.is_text(kind) else expression

    def told_apart(self, expression: str, kind: str) -> str:
        return f"CAST({expression} AS char)" if kind in ("float", "double") else expression

    def delete_joined(self, table: str, rows: str, condition: str, where: str) -> str:
        alias = table.rpartition(" ")[2]
        return f"DELETE {alias} FROM {table} JOIN {rows} ON {condition} WHERE {where}"

    def update_joined(self, table: str, rows: str, names: Sequence[str], condition: str, where: str) -> str:
        values = ", ".join(f"t.{name} = n.{name}" for name in names)
        return f"UPDATE {table} JOIN {rows} ON {condition} SET {values} WHERE {where}"


def check_temporary(cursor: Cursor, address: MySqlAddress) -> None:
    """
    Raises:
        AccessRefusedError: the user may not create temporary tables.
    """
    from .connection import DatabaseError, is_denied

    name = f"{quoted(address.schema)}.{quoted(LAST_ROWS)}"
    try:
        cursor.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} (n int PRIMARY KEY)")
    except DatabaseError as error:
        if not is_denied(error):
            raise
        raise AccessRefusedError(
            f"The user of the {address.title} lacks a privilege: CREATE TEMPORARY TABLES on "
            f"{quoted(address.schema)}, for the last row of each key. Nothing was written. Grant it "
            "(docs/destinations/mysql.md), or use another user in url."
        ) from None
    cursor.execute(f"DROP TEMPORARY TABLE {name}")
