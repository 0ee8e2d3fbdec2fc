"""The statements of `penstock.sql`. See `Dialect`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa

from ..contract import Changes, Mode
from ..database.contract import Cursor, NumberedRows
from ..database.layout import AlterTable, PlanOptions, TableColumn, TableMatch, TableState
from ..database.moving import RowAppender
from ..database.refused_rows import OneRefusedTable
from ..database.staging import PREFIX, StagingComment, StagingTable
from .address import NAME_CHARS_MAX, SqlAddress, qualified, quoted
from .backends import BACKENDS
from .content import KIND, MANIFESTS
from .fence import SqlFence
from .schema import comment_of, create_table, load_table, names_in, new_column, new_id, type_sql
from .types import SqlTypes

ROW = "penstock_row"
"""Column of the staging tables: numbers of their rows, from 0."""


class SqlDialect(OneRefusedTable):
    """See `Dialect`.

    Args:
        backend_name: see `backends`
    """

    kind = KIND
    manifests = MANIFESTS
    row_ids = NumberedRows(ROW)

    def __init__(self, backend_name: str) -> None:
        self.backend_name, self.backend = backend_name, BACKENDS[backend_name]
        self.name = self.backend.title  # type: ignore[misc]
        self.types = SqlTypes(self.backend)  # type: ignore[misc]
        self.fence = SqlFence(self.backend)  # type: ignore[misc]
        self.ignores_case = self.backend.is_file  # type: ignore[misc]

    # Names ------------------------------------------------------------------------------------------

    def quoted(self, name: str) -> str:
        return quoted(name)

    def qualified(self, schema: str, name: str) -> str:
        return qualified(schema, name)

    def address_of(self, uri: str) -> SqlAddress:
        return SqlAddress.parse(uri)

    def new_name_problem(self, name: str) -> str:
        is_long = len(name.encode()) > NAME_CHARS_MAX and not self.backend.is_file
        return f"{name!r} is longer than {NAME_CHARS_MAX} bytes: rename it" if is_long else ""

    def name_problem(self, name: str, encoding: str) -> str:
        if name.lower() == ROW:
            return f"{name!r} is a column of the staging tables: rename it"
        return super().name_problem(name, encoding)

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
        made = [new_column(column.name, column.sql_type) for column in columns]
        create_table(cursor.connection.own, address.schema, address.table, made, new_id())

    def has_rows(self, cursor: Cursor, address: SqlAddress) -> bool:
        select = f"SELECT CASE WHEN EXISTS (SELECT 1 FROM {address.sql}) THEN 1 ELSE 0 END"
        return bool(cursor.execute(select).fetchone()[0])

    def lock_table(self, cursor: Cursor, address: SqlAddress) -> None:
        """See `Dialect`. A transaction keeps the definition of a table that it has read, or it fails."""
        cursor.execute(f"SELECT 1 FROM {address.sql} WHERE 1 = 0").fetchall()

    def alter(self, address: SqlAddress, wanted: AlterTable) -> Iterator[str]:
        """See `Dialect`. Options allow only new columns."""
        for name, kind in wanted.added:
            column = f"{quoted(name)} {type_sql(kind, address.backend_name)}"
            yield f"ALTER TABLE {address.sql} {self.backend.add_column} {column}"

    def primary_key(self, cursor: Cursor, address: SqlAddress) -> Sequence[str]:
        table = self.load(cursor, address)
        return [] if table is None else [column.name for column in table.columns if column.is_key]

    def arrow_rows(self, cursor: Cursor, query: str, schema: pa.Schema) -> pa.RecordBatch:
        rows = cursor.execute(query).fetchall()
        columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
        arrays = [_array(list(values), field.type) for values, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

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
        made = [new_column(name, kind) for name, kind in columns]
        made.append(new_column(ROW, "bigint", is_key=True))
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
        if options.mode == "overwrite":
            cursor.execute(f"DELETE FROM {address.sql} WHERE 1 = 0")
        cursor.execute(f"UPDATE {address.fence_sql} SET version = version WHERE query_id = ''")

    # In the commit ----------------------------------------------------------------------------------

    def mover_of(self, mode: Mode) -> Callable[..., RowAppender]:
        return RowAppender

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


# Values -------------------------------------------------------------------------------------------


def _array(values: list[Any], data_type: pa.DataType) -> pa.Array:
    """Values as drivers return them, as an Arrow array."""
    if pa.types.is_decimal(data_type):
        values = [None if value is None else Decimal(str(value)) for value in values]
    elif pa.types.is_boolean(data_type):
        values = [None if value is None else bool(value) for value in values]
    elif pa.types.is_integer(data_type):
        values = [None if value is None else int(value) for value in values]
    elif pa.types.is_temporal(data_type) and any(isinstance(value, str) for value in values):
        plain = pa.timestamp("us") if pa.types.is_timestamp(data_type) else data_type
        return pa.array(values, pa.string()).cast(plain).cast(data_type)
    return pa.array(values, data_type)
