"""The changes by key of `penstock.sql`, in SQLite and in databases that understand PostgreSQL."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from ..contract import Changes
from ..database.changing import LAST_ROWS
from ..database.contract import Cursor
from ..database.keyed_changes import TransactionalChanges
from ..database.layout import TableState
from ..database.moving import RowSource
from ..database.staging import ROW, StagingTables
from ..database.updating import UpdatingChanger
from ..errors import ConfigurationError, TableNotSupportedError
from ..postgres.unique_keys import check_unique
from .address import NAMES, SqlAddress, quoted
from .backends import Backend
from .schema import comment_of, names_in
from .tombstones import Tombstones

_SQLITE_MIN = (3, 33)
"""The first version with UPDATE ... FROM."""
_WITHOUT_ROWID = re.compile(r"\)[^()]*\bWITHOUT\s+ROWID\b[^()]*\Z", re.IGNORECASE)
_ROW_IDS = "SELECT lower(name), upper(type) FROM pragma_table_info(%s) WHERE pk > 0"
"""A primary key of one column with the type INTEGER is the row id, and has no index."""
_INDEXES = 'SELECT name FROM pragma_index_list(%s) WHERE "unique" = 1 AND partial = 0'
_INDEXED = "SELECT lower(name), coll FROM pragma_index_xinfo(%s) WHERE key = 1"


class SqlChanger(UpdatingChanger):
    """See `UpdatingChanger`."""

    def _last_rows(self, staged: StagingTables) -> RowSource:
        self._check_counts(staged)
        self._cursor.execute(f"DROP TABLE IF EXISTS {LAST_ROWS}")
        self._cursor.execute(
            f"CREATE TEMPORARY TABLE {LAST_ROWS} AS "
            f"SELECT l.*, row_number() OVER (ORDER BY {self._rows.key_of('l')}) - 1 AS {ROW} "
            f"FROM {self._rows.last(staged)}"
        )
        ((count,),) = self._cursor.execute(f"SELECT count(*) FROM {LAST_ROWS}").fetchall()
        return RowSource(LAST_ROWS, ", ".join(one.path for one in staged[:3]), int(count))


class SqlChanges(TransactionalChanges):
    """See `KeyedChanges`."""

    names = NAMES
    tombstone_type = Tombstones

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def check_table(self, cursor: Cursor, address: SqlAddress, table: TableState, changes: Changes) -> None:
        if self._backend.is_file:
            _check_sqlite(cursor, address, table, changes.keys)
        else:
            check_unique(cursor, address.sql, address, changes.keys)

    def mover_of(self, changes: Changes) -> type[SqlChanger]:
        return SqlChanger

    def tables_named(self, cursor: Cursor, address: SqlAddress, prefix: str) -> Sequence[str]:
        there = names_in(cursor.connection.own, address.schema)
        return sorted(name for name in there if name.startswith(prefix))

    # Statements -------------------------------------------------------------------------------------

    def widest(self, kind: str) -> str:
        """See `KeyedChanges`. Options allow only new columns, so no column is widened."""
        return kind

    def compared(self, expression: str, kind: str) -> str:
        if kind != "text":
            return expression
        return f"{expression} COLLATE {'BINARY' if self._backend.is_file else quoted('C')}"

    def same(self, stored: str, given: str, kind: str) -> str:
        """See `KeyedChanges`. On a server the index over the keys has the column's own collation, for which
        only equal texts are equal.
        """
        return f"{stored} = {self.compared(given, kind) if self._backend.is_file else given}"

    def told_apart(self, expression: str, kind: str) -> str:
        """See `KeyedChanges`. SQLite stores -0.0 as 0.0."""
        is_ambiguous = kind in ("real", "double") and not self._backend.is_file
        return f"CAST({expression} AS text)" if is_ambiguous else expression

    def delete_joined(self, table: str, rows: str, condition: str, where: str) -> str:
        """See `KeyedChanges`. In SQLite, CROSS JOIN makes it look up each row by the index over the keys."""
        if not self._backend.is_file:
            return super().delete_joined(table, rows, condition, where)
        name, alias = table.rsplit(" ", 1)
        return (
            f"DELETE FROM {name} WHERE _rowid_ IN "
            f"(SELECT {alias}._rowid_ FROM {rows} CROSS JOIN {table} WHERE {condition} AND {where})"
        )

    def update_joined(self, table: str, rows: str, names: Sequence[str], condition: str, where: str) -> str:
        name, alias = table.rsplit(" ", 1)
        return super().update_joined(f"{name} AS {alias}", rows, names, condition, where)


def _check_sqlite(cursor: Cursor, address: SqlAddress, table: TableState, keys: Sequence[str]) -> None:
    """
    Raises:
        ConfigurationError: this SQLite is too old.
        TableNotSupportedError: the table may have several rows of a key, or cannot be changed.
    """
    if sqlite3.sqlite_version_info < _SQLITE_MIN:
        raise ConfigurationError(
            f"writeMode=upsert needs SQLite {'.'.join(map(str, _SQLITE_MIN))}, and this Python has "
            f"{sqlite3.sqlite_version}. Nothing was written. Use a newer Python."
        )
    names = {column.name.lower() for column in table.columns}
    if "_rowid_" in names or _WITHOUT_ROWID.search(comment_of(cursor.connection.own, "", address.table)):
        raise TableNotSupportedError(
            f"The {address.title} is WITHOUT ROWID, or has a column with the name _rowid_, so its rows "
            "cannot be replaced. Nothing was written. Create it again without that."
        )
    wanted = sorted(name.lower() for name in keys)
    if cursor.execute(_ROW_IDS, (address.table,)).fetchall() == [(name, "INTEGER") for name in wanted]:
        return
    others = []
    for (index,) in cursor.execute(_INDEXES, (address.table,)).fetchall():
        columns = cursor.execute(_INDEXED, (index,)).fetchall()
        if sorted(str(name) for name, _ in columns) != wanted:
            continue
        if all(collation == "BINARY" for _, collation in columns):
            return
        others.append(quoted(index))
    listed = ", ".join(map(quoted, keys))
    why = f" ({', '.join(others)}: different texts are equal in its collation)" if others else ""
    raise TableNotSupportedError(
        f"The {address.title} has no unique index over exactly the columns of keys, {listed}{why}. Nothing "
        f"was written. Create one:\n    CREATE UNIQUE INDEX events_by_key ON {address.sql} ({listed});\n"
        "or give the columns of its primary key as keys."
    )
