"""The statements of `penstock.sql`. See `Dialect`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import cache

from ..contract import Changes, Mode
from ..database.changing import LAST_ROWS
from ..database.content import Manifests
from ..database.contract import Cursor, Mover, NumberedRows
from ..database.layout import AlterTable, PlanOptions, TableColumn, TableMatch, TableState
from ..database.moving import RowAppender
from ..database.refused_rows import OneRefusedTable
from ..database.staging import PREFIX, ROW, StagingComment, StagingTable
from .address import NAME_CHARS_MAX, NAMES, SqlAddress, quoted
from .backends import BACKENDS
from .fence import SqlFence
from .keyed_changes import SqlChanges
from .schema import comment_of, create_table, load_table, names_in, new_id, type_sql
from .types import SqlTypes, is_staged_as


class SqlDialect(OneRefusedTable):
    """See `Dialect`.

    Args:
        backend_name: see `backends`
    """

    kind = "sql"
    names = NAMES
    manifests = Manifests(kind, "table of penstock.sql", is_staged_as, SqlAddress.parse)
    row_ids = NumberedRows(ROW)

    def __init__(self, backend_name: str) -> None:
        self.backend_name, self.backend = backend_name, BACKENDS[backend_name]
        self.name = self.backend.title  # type: ignore[misc]
        self.types = SqlTypes(self.backend)  # type: ignore[misc]
        self.fence = SqlFence(backend_name, self.backend)  # type: ignore[misc]
        self.ignores_case = self.backend.is_file  # type: ignore[misc]
        if self.backend.seconds_later:
            self.changes = SqlChanges(self.backend)  # type: ignore[misc]

    # Names ------------------------------------------------------------------------------------------

    def new_name_problem(self, name: str) -> str:
        is_long = len(name.encode()) > NAME_CHARS_MAX and not self.backend.is_file
        return f"{name!r} is longer than {NAME_CHARS_MAX} bytes: rename it" if is_long else ""

    # Tables -----------------------------------------------------------------------------------------

    def load(self, cursor: Cursor, address: SqlAddress) -> TableState | None:
        return load_table(cursor.connection.own, address)

    def lock_creation(self, cursor: Cursor, address: SqlAddress) -> None:
        """Nothing: in SQLite one transaction writes at a time. Elsewhere the second one fails, and finds the
        table when it is tried again.
        """

    def create(
        self, cursor: Cursor, address: SqlAddress, columns: Sequence[TableColumn], keys: Sequence[str]
    ) -> None:
        """See `Dialect`. The comment tells the table from a later one of the same name."""
        made = [self._defined(column.name, column.sql_type) for column in columns]
        if keys:
            made.append(f"PRIMARY KEY ({', '.join(map(quoted, keys))})")
        create_table(cursor.connection.own, address.schema, address.table, made, new_id())

    def _defined(self, name: str, kind: str) -> str:
        return f"{quoted(name)} {type_sql(kind, self.backend_name)}"

    def alter(self, address: SqlAddress, wanted: AlterTable) -> Iterator[str]:
        """See `Dialect`. Options allow only new columns."""
        for name, kind in wanted.added:
            yield f"ALTER TABLE {address.sql} {self.backend.add_column} {self._defined(name, kind)}"

    def primary_key(self, cursor: Cursor, address: SqlAddress) -> Sequence[str]:
        table = self.load(cursor, address)
        return [] if table is None else [column.name for column in table.columns if column.is_key]

    def limited(self, query: str, limit: int, offset: int = 0) -> str:
        if self.backend_name == "mssql":
            return f"{query} OFFSET {offset} ROWS FETCH NEXT {limit} ROWS ONLY"
        return super().limited(query, limit, offset)

    # Staging tables ---------------------------------------------------------------------------------

    def exist(self, cursor: Cursor, tables: Sequence[StagingTable]) -> list[bool]:
        there = {schema: names_in(cursor.connection.own, schema) for schema in {one.schema for one in tables}}
        return [one.name in there[one.schema] for one in tables]

    def drop(self, cursor: Cursor, tables: Sequence[StagingTable]) -> int:
        there = [one for one, is_there in zip(tables, self.exist(cursor, tables), strict=True) if is_there]
        for one in there:
            cursor.execute(f"DROP TABLE {self.staged_sql(one)}")
        return len(there)

    def staging_comments(self, cursor: Cursor, address: SqlAddress) -> Iterator[tuple[str, str, int, str]]:
        """See `Dialect`. Sizes are not known."""
        own = cursor.connection.own
        for name in sorted(names_in(own, address.schema)):
            if name.startswith(PREFIX):
                comment = comment_of(own, address.schema, name)
                if self.backend.is_file:
                    comment = comment.partition("/* ")[2].partition(" */")[0]
                yield address.schema, name, 0, comment

    def create_staging(
        self, cursor: Cursor, staged: StagingTable, columns: Sequence[tuple[str, str]], query_id: str
    ) -> None:
        """Create a staging table.

        Args:
            columns: name and SQL type
        """
        made = [self._defined(name, kind) for name, kind in columns]
        made.append(f"{self._defined(ROW, 'bigint')} NOT NULL PRIMARY KEY")
        comment = str(StagingComment(datetime.now(timezone.utc), query_id))
        create_table(cursor.connection.own, staged.schema, staged.name, made, comment)

    # Checks of a plan -------------------------------------------------------------------------------

    def check_rights(
        self,
        cursor: Cursor,
        address: SqlAddress,
        table: TableState,
        match: TableMatch,
        options: PlanOptions,
        changes: Changes | None,
    ) -> None:
        """See `Dialect`. The database checks the privileges of statements that do nothing."""
        there = {column.name for column in table.columns}
        names = ", ".join(quoted(column.name) for column in match.columns if column.name in there)
        if names:
            cursor.execute(
                f"INSERT INTO {address.sql} ({names}) SELECT {names} FROM {address.sql} WHERE 1 = 0"
            )
        if options.mode == "overwrite" or changes is not None:
            cursor.execute(f"DELETE FROM {address.sql} WHERE 1 = 0")
        if changes is not None:
            key = quoted(changes.keys[0])
            cursor.execute(f"UPDATE {address.sql} SET {key} = {key} WHERE 1 = 0")
            cursor.execute(f"CREATE TEMPORARY TABLE {LAST_ROWS} (n integer)")
            cursor.execute(f"DROP TABLE {LAST_ROWS}")
        cursor.execute(f"UPDATE {address.fence_sql} SET version = version WHERE query_id = ''")

    # In the commit ----------------------------------------------------------------------------------

    def mover_of(self, mode: Mode) -> Callable[..., Mover]:
        return self.keyed_changes().mover_of(mode) if isinstance(mode, Changes) else RowAppender

    def check_deferred(self, cursor: Cursor) -> None:
        if self.backend_name == "postgresql":
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


@cache
def dialect_of(backend_name: str) -> SqlDialect:
    """
    Args:
        backend_name: see `backends`
    """
    return SqlDialect(backend_name)
