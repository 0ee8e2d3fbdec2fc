"""The statements of MySQL and MariaDB. See `Dialect`.

A statement that creates, changes or drops a table commits. So a commit has none of them: refused rows are in
a table that a plan has created, columns are changed before, and staging tables are dropped after the
transaction.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import timezone
from typing import Any, ClassVar

from ..contract import Changes, Mode
from ..database.content import Manifests
from ..database.contract import Cursor, NumberedRows, TypeRules
from ..database.layout import AlterTable, PlanOptions, TableColumn, TableMatch, TableState
from ..database.moving import RowAppender
from ..database.prepared import names_of
from ..database.refused_rows import OneRefusedTable
from ..database.staging import PREFIX, PREPARED, ROW, StagingComment, StagingTable
from ..errors import RetryableError
from . import types as rules
from .address import IDENTIFIER_CHARS_MAX, NAMES, MySqlAddress, literal, quoted
from .fence import MySqlFence
from .keyed_changes import MySqlChanges, check_temporary
from .prepared import MySqlPrepared

DROP_TIMEOUT_S = 5
"""How long a statement that drops staging tables waits for their readers."""
_CREATE_TIMEOUT_S = 60
_COMMENT = "penstock table "
_ID = re.compile(rf"{_COMMENT}([0-9a-f]{{32}})")

_TABLE = """
SELECT table_name, table_type, coalesce(engine, ''), table_comment, @@lower_case_table_names
FROM information_schema.tables WHERE table_schema = %s AND table_name = %s
"""
_COLUMNS = """
SELECT column_name, column_type, is_nullable, column_default, extra, column_key
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_PRIMARY_KEY = """
SELECT column_name FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND index_name = 'PRIMARY' ORDER BY seq_in_index
"""
_STAGED = """
SELECT table_schema, table_name, coalesce(data_length, 0), table_comment FROM information_schema.tables
WHERE table_name LIKE %s AND table_type = 'BASE TABLE'
"""


class MySqlDialect(OneRefusedTable):
    """See `Dialect`."""

    kind = "mysql"
    name = "MySQL"
    types: ClassVar[TypeRules] = rules
    names = NAMES
    manifests = Manifests(kind, "MySQL table", rules.is_staged_as, MySqlAddress.parse)
    fence = MySqlFence()
    changes = MySqlChanges()
    prepared = MySqlPrepared()
    row_ids = NumberedRows(ROW)
    has_transactional_ddl = False

    # Names ------------------------------------------------------------------------------------------

    def new_name_problem(self, name: str) -> str:
        if len(name) > IDENTIFIER_CHARS_MAX:
            return f"{name!r} is longer than {IDENTIFIER_CHARS_MAX} characters: rename it"
        if any(ord(char) > 0xFFFF for char in name):
            return f"{name!r} has a character beyond U+FFFF, which no name in MySQL has: rename it"
        return f"{name!r} ends with a space: rename it" if name.endswith(" ") else ""

    # Tables -----------------------------------------------------------------------------------------

    def load(self, cursor: Cursor, address: MySqlAddress) -> TableState | None:
        names = (address.schema, address.table)
        found = [
            row
            for row in cursor.execute(_TABLE, names).fetchall()
            if row[0] == address.table or (int(row[-1]) and row[0].lower() == address.table.lower())
        ]
        if not found:
            return None
        _, kind, engine, comment, _ = found[0]
        unsupported = ""
        if kind != "BASE TABLE":
            unsupported = "it is no plain table"
        elif engine.lower() != "innodb":
            unsupported = f"its engine {engine} has no transactions: run ALTER TABLE ... ENGINE = InnoDB"
        own = _ID.search(_text(comment))
        columns = tuple(_column(*row) for row in cursor.execute(_COLUMNS, names).fetchall())
        return TableState(own[1] if own else "", columns, unsupported)

    def lock_creation(self, cursor: Cursor, address: MySqlAddress) -> None:
        """Until the connection ends."""
        name = f"penstock_create {address.schema}"[:64]
        ((is_locked,),) = cursor.execute("SELECT GET_LOCK(%s, %s)", (name, _CREATE_TIMEOUT_S)).fetchall()
        if not is_locked:
            raise RetryableError(
                f"Another process has been creating tables for {address.title} for {_CREATE_TIMEOUT_S} s. "
                "Nothing was written."
            )

    def create(
        self, cursor: Cursor, address: MySqlAddress, columns: Sequence[TableColumn], keys: Sequence[str]
    ) -> None:
        """See `Dialect`. The comment tells the table from a later one of the same name."""
        parts = [
            f"{quoted(column.name)} {self._key(cursor, column.sql_type, len(keys))}"
            if column.name in keys
            else f"{quoted(column.name)} {_definition(column.sql_type)}"
            for column in columns
        ]
        if keys:
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted, keys))})")
        cursor.execute(
            f"CREATE TABLE {address.sql} ({', '.join(parts)}) ENGINE = InnoDB "
            f"DEFAULT CHARACTER SET utf8mb4 COMMENT {literal(_COMMENT + uuid.uuid4().hex)}"
        )

    def _key(self, cursor: Cursor, kind: str, count: int) -> str:
        return f"{self.changes.definition(cursor, rules.key_type(kind, count))} NOT NULL"

    def alter(self, address: MySqlAddress, wanted: AlterTable) -> Iterator[str]:
        """See `Dialect`. Options allow only new columns."""
        added = [f"ADD COLUMN {quoted(name)} {_definition(kind)}" for name, kind in wanted.added]
        if added:
            yield f"ALTER TABLE {address.sql} {', '.join(added)}"

    def primary_key(self, cursor: Cursor, address: MySqlAddress) -> Sequence[str]:
        rows = cursor.execute(_PRIMARY_KEY, (address.schema, address.table)).fetchall()
        return [_text(name) for (name,) in rows]

    # Staging tables ---------------------------------------------------------------------------------

    def exist(self, cursor: Cursor, tables: Sequence[StagingTable]) -> list[bool]:
        there: set[tuple[str, str]] = set()
        for schema in {one.schema for one in tables}:
            names = [one.name for one in tables if one.schema == schema]
            places = ", ".join(["%s"] * len(names))
            found = cursor.execute(
                "SELECT table_name FROM information_schema.tables "
                f"WHERE table_schema = %s AND table_name IN ({places})",
                (schema, *names),
            ).fetchall()
            there |= {(schema, _text(name)) for (name,) in found}
        if names_of(tables):
            there |= {(PREPARED, one.name) for one in self.prepared.kept(cursor)}
        return [(one.schema, one.name) in there for one in tables]

    def drop(self, cursor: Cursor, tables: Sequence[StagingTable]) -> int:
        there = [one for one, is_there in zip(tables, self.exist(cursor, tables), strict=True) if is_there]
        if there:
            cursor.execute(f"SET SESSION lock_wait_timeout = {DROP_TIMEOUT_S}")
            cursor.execute(f"DROP TABLE IF EXISTS {', '.join(map(self.staged_sql, there))}")
        return len(there)

    def staging_comments(self, cursor: Cursor, address: MySqlAddress) -> list[tuple[str, str, int, str]]:
        pattern = PREFIX.replace("_", "\\_") + "%"
        rows = cursor.execute(_STAGED, (pattern,)).fetchall()
        found = [
            (_text(schema), _text(name), int(size), _text(comment)) for schema, name, size, comment in rows
        ]
        if self.prepared.is_there(cursor, address):
            found += [
                (PREPARED, one.name, 0, str(StagingComment(one.prepared_at, one.query_id)))
                for one in self.prepared.kept(cursor)
            ]
        return found

    def create_staging(
        self, cursor: Cursor, staged: StagingTable, columns: Sequence[tuple[str, str]], query_id: str
    ) -> None:
        """Create a staging table. This commits.

        Args:
            columns: name and SQL type
        """
        ((now,),) = cursor.execute("SELECT UTC_TIMESTAMP(6)").fetchall()
        comment = literal(str(StagingComment(now.replace(tzinfo=timezone.utc), query_id)))
        parts = [f"{quoted(name)} {rules.staged_type(kind)} NULL" for name, kind in columns]
        cursor.execute(
            f"CREATE TABLE {self.staged_sql(staged)} ({', '.join(parts)}, "
            f"{ROW} bigint NOT NULL AUTO_INCREMENT PRIMARY KEY) ENGINE = InnoDB "
            f"DEFAULT CHARACTER SET utf8mb4 COLLATE {cursor.connection.text_collation} COMMENT {comment}"
        )

    # Checks of a plan -------------------------------------------------------------------------------

    def check_rights(
        self,
        cursor: Cursor,
        address: MySqlAddress,
        table: TableState,
        match: TableMatch,
        options: PlanOptions,
        changes: Changes | None,
    ) -> None:
        """See `Dialect`. The server checks the privileges of statements that do nothing; whoever lacks one is
        told which.
        """
        there = {column.name for column in table.columns}
        names = [quoted(column.name) for column in match.columns if column.name in there]
        if names:
            nothing = ", ".join(["NULL"] * len(names))
            cursor.execute(
                f"INSERT INTO {address.sql} ({', '.join(names)}) SELECT {nothing} FROM DUAL WHERE 1 = 0"
            )
        if options.mode == "overwrite":
            cursor.execute(f"DELETE FROM {address.sql} WHERE 1 = 0")
        if options.staging_schema in ("", address.schema):  # the table is there, so this does nothing
            cursor.execute(f"CREATE TABLE IF NOT EXISTS {address.sql} (n int PRIMARY KEY)")
        if changes is not None:
            self._check_rights_of_changes(cursor, address, table, match, changes)
        if self.fence.is_there(cursor, address):
            cursor.execute(f"UPDATE {address.fence_sql} SET version = version WHERE query_id = ''")

    def _check_rights_of_changes(
        self, cursor: Cursor, address: MySqlAddress, table: TableState, match: TableMatch, changes: Changes
    ) -> None:
        key = quoted(changes.keys[0])
        cursor.execute(f"UPDATE {address.sql} SET {key} = {key} WHERE 1 = 0")
        if changes.delete_when:
            cursor.execute(f"DELETE FROM {address.sql} WHERE 1 = 0")
        if (deleted := self.changes.tombstones_of(address, table, changes, match)) is not None:
            cursor.execute(f"INSERT INTO {deleted.sql} SELECT * FROM {deleted.sql} WHERE 1 = 0")
            cursor.execute(f"UPDATE {deleted.sql} SET expires_at = expires_at WHERE 1 = 0")
            cursor.execute(f"DELETE FROM {deleted.sql} WHERE 1 = 0")
        check_temporary(cursor, address)

    # In the commit ----------------------------------------------------------------------------------

    def mover_of(self, mode: Mode) -> Callable[..., RowAppender]:
        return RowAppender


def _definition(kind: str) -> str:
    """A new column. Without NULL an old server gives a `timestamp` a default."""
    return f"{kind} NULL"


def _column(name: Any, kind: Any, nullable: str, default: Any, extra: str, key: str) -> TableColumn:
    extra = extra.lower()
    is_computed = "generated" in extra.replace("default_generated", "")
    is_required = nullable == "NO"
    is_filled = default is not None or "auto_increment" in extra or is_computed
    sql_type = rules.normalized(_text(kind))
    return TableColumn(_text(name), sql_type, is_required, is_filled, is_computed, key == "PRI")


def _text(value: Any) -> str:
    """A name or a comment."""
    return str(rules.text_of(value))


DIALECT = MySqlDialect()
