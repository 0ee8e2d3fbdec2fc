"""The statements of Postgres. See `Dialect`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar

import pyarrow as pa

from ..contract import Changes, Mode
from ..database.content import Manifests
from ..database.contract import Cursor, RowIds, TypeRules
from ..database.layout import AlterTable, PlanOptions, TableColumn, TableMatch, TableState
from ..database.moving import RowAppender, RowMover
from ..database.prepared import names_of
from ..database.refused_rows import RefusedTables
from ..database.staging import PREFIX, PREPARED, StagingComment, StagingTable
from . import table
from . import types as rules
from .address import IDENTIFIER_BYTES_MAX, NAMES, PostgresAddress, literal, quoted
from .fence import PostgresFence
from .keyed_changes import PostgresChanges
from .prepared import PostgresPrepared
from .rights import check_alterable, check_rights
from .types import UTF8, can_encode

_CREATE_LOCK_KEY = 0x70656E73746F7067  # "penstopg" in ASCII

_PRIMARY_KEY = """
SELECT a.attname FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass(%s) AND i.indisprimary
ORDER BY array_position(i.indkey::int2[], a.attnum)
"""
_STAGED = """
SELECT n.nspname, c.relname, coalesce(pg_total_relation_size(c.oid), 0),
    coalesce(obj_description(c.oid, 'pg_class'), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND starts_with(c.relname, %s)
"""
_REFUSED = (
    "(letter_id text PRIMARY KEY, row_id text NOT NULL, code text NOT NULL, "
    "message text NOT NULL, refused_at timestamptz NOT NULL, content bytea NOT NULL)"
)
_TID = re.compile(r"\((\d+),(\d+)\)")


class _Ctid(RowIds):
    """The address of a row in the pages of its table."""

    column = "ctid"

    def blocks(self, cursor: Cursor, relation: str) -> int:
        size = "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::bigint"
        ((pages,),) = cursor.execute(size, (relation,)).fetchall()
        return int(pages)

    def in_blocks(self, first: int, end: int) -> str:
        return f"n.ctid >= '({first},0)'::tid AND n.ctid < '({end},0)'::tid"

    def selected(self) -> str:
        return "n.ctid::text"

    def literal(self, row_id: str) -> str:
        match = _TID.fullmatch(row_id)
        assert match is not None, row_id
        return f"'({match[1]},{match[2]})'::tid"

    def among(self, row_ids: Sequence[str]) -> str:
        return f"n.ctid = ANY (ARRAY[{', '.join(map(self.literal, row_ids))}])"


class PostgresDialect(RefusedTables):
    """See `Dialect`."""

    kind = "postgres"
    name = "Postgres"
    id_name = "OID"
    types: ClassVar[TypeRules] = rules
    names = NAMES
    manifests = Manifests(kind, "Postgres table", rules.is_staged_as, PostgresAddress.parse)
    fence = PostgresFence()
    prepared = PostgresPrepared()
    changes = PostgresChanges()
    row_ids = _Ctid()

    # Names ------------------------------------------------------------------------------------------

    def new_name_problem(self, name: str) -> str:
        if len(name.encode()) > IDENTIFIER_BYTES_MAX:
            return f"{name!r} is longer than {IDENTIFIER_BYTES_MAX} bytes: rename it"
        if name in table.SYSTEM_COLUMNS:
            return f"{name!r} is a system column of each Postgres table: rename it"
        return ""

    def name_problem(self, name: str, encoding: str) -> str:
        if problem := super().name_problem(name, encoding):
            return problem
        if can_encode(name, encoding):
            return ""
        return (
            f"{name!r} has a character that the encoding of the database, {encoding}, does not have: "
            "rename it"
        )

    def encoding(self, cursor: Cursor) -> str:
        return cursor.connection.info.parameter_status("server_encoding") or UTF8

    # Tables -----------------------------------------------------------------------------------------

    def load(self, cursor: Cursor, address: PostgresAddress) -> TableState | None:
        return table.load_if_there(cursor, address)

    def lock_creation(self, cursor: Cursor, address: PostgresAddress) -> None:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK_KEY,))

    def create(
        self, cursor: Cursor, address: PostgresAddress, columns: Sequence[TableColumn], keys: Sequence[str]
    ) -> None:
        parts = [f"{quoted(column.name)} {column.sql_type}" for column in columns]
        if keys:
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted, keys))})")
        cursor.execute(f"CREATE TABLE {address.sql} ({', '.join(parts)})")

    def lock_table(self, cursor: Cursor, address: PostgresAddress) -> None:
        cursor.execute(f"LOCK TABLE {address.sql} IN ROW EXCLUSIVE MODE")

    def alter(self, address: PostgresAddress, wanted: AlterTable) -> Iterator[str]:
        for old, name in wanted.renames:
            yield f"ALTER TABLE {address.sql} RENAME COLUMN {quoted(old)} TO {quoted(name)}"
        clauses = [
            *(f"ADD COLUMN {quoted(name)} {kind}" for name, kind in wanted.added),
            *(f"ALTER COLUMN {quoted(name)} TYPE {kind}" for name, kind in wanted.types),
            *(f"ALTER COLUMN {quoted(name)} DROP NOT NULL" for name in wanted.relaxed),
        ]
        if clauses:
            yield f"ALTER TABLE {address.sql} {', '.join(clauses)}"

    def primary_key(self, cursor: Cursor, address: PostgresAddress) -> Sequence[str]:
        return [name for (name,) in cursor.execute(_PRIMARY_KEY, (address.sql,)).fetchall()]

    def selected(self, name: str, data_type: pa.DataType) -> str:
        column = quoted(name)
        if pa.types.is_timestamp(data_type) and data_type.tz:
            return f"{column} AT TIME ZONE 'UTC'"
        if pa.types.is_list(data_type) and pa.types.is_string(data_type.value_type):
            return f"{column}::text[]"
        return f"{column}::text" if pa.types.is_string(data_type) else column

    # Staging tables ---------------------------------------------------------------------------------

    def exist(self, cursor: Cursor, tables: Sequence[StagingTable]) -> list[bool]:
        statement = (
            "SELECT to_regclass(name) IS NOT NULL FROM unnest(%s::text[]) WITH ORDINALITY AS t (name, n) "
            "ORDER BY n"
        )
        kept: set[str] = set()
        if names_of(tables):
            kept = {one.name for one in self.prepared.kept(cursor)}
        names = ["" if one.is_prepared else self.staged_sql(one) for one in tables]
        found = cursor.execute(statement, (names,)).fetchall()
        return [
            one.name in kept if one.is_prepared else bool(is_there)
            for one, (is_there,) in zip(tables, found, strict=True)
        ]

    def drop(self, cursor: Cursor, tables: Sequence[StagingTable]) -> int:
        there = sum(self.exist(cursor, tables))
        if there:
            cursor.execute(f"DROP TABLE IF EXISTS {', '.join(map(self.staged_sql, tables))}")
        return there

    def drop_in_time(self, cursor: Cursor, tables: Sequence[StagingTable], timeout_s: float) -> None:
        cursor.execute(f"SET LOCAL lock_timeout = '{timeout_s}s'")
        self.drop(cursor, tables)

    def staging_comments(
        self, cursor: Cursor, address: PostgresAddress
    ) -> Iterator[tuple[str, str, int, str]]:
        yield from cursor.execute(_STAGED, (PREFIX,)).fetchall()
        for one in self.prepared.kept(cursor):
            yield PREPARED, one.name, 0, str(StagingComment(one.prepared_at, one.query_id))

    def create_staging(self, cursor: Cursor, staged: StagingTable, definition: str, query_id: str) -> None:
        """Create a table with the comment of a staging table."""
        name = self.staged_sql(staged)
        cursor.execute(f"CREATE TABLE {name} {definition}")
        ((now,),) = cursor.execute("SELECT now()").fetchall()
        cursor.execute(f"COMMENT ON TABLE {name} IS {literal(str(StagingComment(now, query_id)))}")

    def create_refused(self, cursor: Cursor, table: StagingTable, query_id: str) -> None:
        self.create_staging(cursor, table, _REFUSED, query_id)

    # Checks of a plan -------------------------------------------------------------------------------

    def check_alterable(
        self, cursor: Cursor, address: PostgresAddress, table: TableState, match: TableMatch
    ) -> None:
        check_alterable(cursor, address, table, match)

    def check_rights(
        self,
        cursor: Cursor,
        address: PostgresAddress,
        table: TableState,
        match: TableMatch,
        options: PlanOptions,
        changes: Changes | None,
    ) -> None:
        deleted = None if changes is None else self.changes.tombstones_of(address, table, changes, match)
        check_rights(cursor, address, table, match, options, deleted)

    # In the commit ----------------------------------------------------------------------------------

    def mover_of(self, mode: Mode) -> type[RowMover]:
        return RowAppender

    def check_deferred(self, cursor: Cursor) -> None:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


DIALECT = PostgresDialect()
