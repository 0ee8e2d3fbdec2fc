"""The current state of a Postgres table, and how the columns of a query match it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..contract import Changes, Mode
from ..errors import TableNotSupportedError
from ..file_tables import schema_diff
from ..file_tables.evolution import Evolution, Narrowing
from ..file_tables.schema_diff import (
    QUERY,
    Difference,
    DifferenceKind,
    compare,
    problems_in,
    query_mismatch,
    without_case,
)
from ..file_tables.table_changes import check_same_id, dropped
from .address import IDENTIFIER_BYTES_MAX, PostgresAddress, quoted
from .columns import UNFILLED, ColumnChanges, PostgresColumn, needed_renames, renamed
from .types import can_encode, holds, is_staged_as, may_hold, sql_type, widened

if TYPE_CHECKING:
    from .connection import Cursor


@dataclass(frozen=True, slots=True)
class PostgresTableState:
    oid: str
    columns: tuple[PostgresColumn, ...]
    unsupported: str = ""
    """Why rows cannot be committed to it; empty if they can."""
    owner: str = ""
    delete_trigger: str = ""
    """A trigger that may prevent rows from being deleted, and its table."""


_TABLE = """
SELECT c.oid::text, pg_get_userbyid(c.relowner),
    CASE
        WHEN c.relkind NOT IN ('r', 'p') THEN 'it is no table'
        WHEN c.relpersistence <> 'p' THEN
            'it is UNLOGGED or TEMPORARY, so a crash of the server would empty it while the token stays: '
            'run ALTER TABLE ... SET LOGGED'
        WHEN EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid) THEN
            'it has rules, which may put rows elsewhere: drop them'
        WHEN row_security_active(c.oid) THEN
            'row security hides rows from this user: grant BYPASSRLS, or let its owner write it'
        ELSE coalesce((
            SELECT 'its partition ' || p.oid::regclass || ' is UNLOGGED or a foreign table, which may lose '
                'rows while the token stays: detach it, or run ALTER TABLE ... SET LOGGED'
            FROM pg_partition_tree(c.oid) AS t JOIN pg_class p ON p.oid = t.relid
            WHERE p.relkind NOT IN ('r', 'p') OR p.relpersistence <> 'p'
            LIMIT 1
        ), '')
    END,
    coalesce((
        WITH RECURSIVE tree (oid) AS (
            SELECT c.oid UNION SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = tree.oid
        )
        SELECT format('%%s of %%s', tgname, tgrelid::regclass) FROM pg_trigger JOIN tree ON tgrelid = tree.oid
        WHERE tgtype & 11 = 11 AND tgenabled <> 'D'  -- BEFORE DELETE FOR EACH ROW
        LIMIT 1
    ), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod), attnotnull,
    atthasdef OR attidentity <> '', attgenerated <> '' OR attidentity = 'a',
    EXISTS (SELECT FROM pg_index WHERE indrelid = attrelid AND indisprimary AND attnum = ANY (indkey))
FROM pg_attribute WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""

_SYSTEM_COLUMNS = ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")


def load_if_there(cursor: Cursor, address: PostgresAddress) -> PostgresTableState | None:
    """Load the table; None if it does not exist."""
    row = cursor.execute(_TABLE, (address.schema, address.table)).fetchone()
    if row is None:
        return None
    oid, owner, unsupported, delete_trigger = row
    columns = tuple(PostgresColumn(*column) for column in cursor.execute(_COLUMNS, (oid,)).fetchall())
    return PostgresTableState(oid, columns, unsupported, owner, delete_trigger)


def read_rows(cursor: Cursor, address: PostgresAddress, column: str, value: str) -> pa.Table | None:
    """Return the rows with this value in a text column; None if the table does not exist."""
    table = load_if_there(cursor, address)
    if table is None:
        return None
    found = cursor.execute(f"SELECT * FROM {address.sql} WHERE {quoted(column)} = %s", (value,)).fetchall()
    names = [one.name for one in table.columns]
    return pa.table({name: [row[number] for row in found] for number, name in enumerate(names)})


def check_supported(table: PostgresTableState, address: PostgresAddress, mode: Mode) -> None:
    """
    Args:
        mode: what commits do with the rows of the table

    Raises:
        TableNotSupportedError: names the feature.
    """
    problem = table.unsupported
    deletes = bool(mode.delete_when) if isinstance(mode, Changes) else mode == "overwrite"
    if deletes and table.delete_trigger and not problem:
        problem = (
            f"the trigger {table.delete_trigger} runs BEFORE DELETE and may keep rows that are to be "
            f"{'deleted' if isinstance(mode, Changes) else 'replaced'}: disable it, or append"
        )
    if problem:
        raise TableNotSupportedError(
            f"The Postgres table {address.uri} cannot be written: {problem}. Nothing was written."
        )


def check_same_table(
    table: PostgresTableState | None, table_id: str | None, address: PostgresAddress
) -> None:
    """
    Raises:
        TableChangedError: it does not exist, or has another OID than `table_id`.
    """
    if table is None:
        raise dropped(f"Postgres table {address.uri}")
    check_same_id(f"Postgres table {address.uri}", table.oid, table_id, name="OID")


def check_names(rows: pa.Schema, address: PostgresAddress, encoding: str) -> None:
    """
    Args:
        encoding: of the database

    Raises:
        SchemaMismatchError: lists the names that no column of the database can have.
    """
    problems = []
    for name in rows.names:
        if not name:
            problems.append("a column has an empty name: give it one")
        elif "\0" in name:
            problems.append(f"{name!r} has a NUL character: rename it")
        elif not can_encode(name, encoding):
            problems.append(
                f"{name!r} has a character that the encoding of the database, {encoding}, does not have: "
                "rename it"
            )
    if problems:
        raise query_mismatch(f"Postgres table {address.uri}", problems, _given(rows))


def new_columns_of(rows: pa.Schema, address: PostgresAddress) -> tuple[PostgresColumn, ...]:
    """Columns for a new table, or new columns of a table: all nullable, because Spark's flags are only
    hints.

    Raises:
        SchemaMismatchError: names the columns whose type or name Postgres does not support.
    """
    columns, problems = [], []
    for field in rows:
        kind = sql_type(field.type)
        if kind is None:
            problems.append(
                f"{field.name!r} is {field.type}, which Postgres cannot store without loss: write "
                f"to_json({quoted_in_spark(field.name)}) instead"
            )
        elif len(field.name.encode()) > IDENTIFIER_BYTES_MAX:
            problems.append(f"{field.name!r} is longer than {IDENTIFIER_BYTES_MAX} bytes: rename it")
        elif field.name in _SYSTEM_COLUMNS:
            problems.append(f"{field.name!r} is a system column of each Postgres table: rename it")
        else:
            columns.append(PostgresColumn(field.name, kind))
    if problems:
        raise query_mismatch(f"Postgres table {address.uri}", problems, _given(rows))
    return tuple(columns)


@dataclass(frozen=True, slots=True)
class PostgresMatch:
    """How the columns of a query match those of a table."""

    rows: pa.Schema
    """The columns of the query that the table has, or gets."""
    columns: tuple[PostgresColumn, ...]
    """The table's column for each of them, after the changes."""
    new: tuple[PostgresColumn, ...]
    changes: ColumnChanges


_QUERY: Mapping[DifferenceKind, str] = {
    **QUERY,
    DifferenceKind.REQUIRED: UNFILLED,
    DifferenceKind.TYPE: "{columns} is {table} in the table, which cannot store {given} without loss",
    DifferenceKind.MERGED: "{names} both match {columns} in the table: leave one out",
    DifferenceKind.AMBIGUOUS: "{names} matches each of {columns} in the table: use the exact name",
}


def match(
    rows: pa.Schema,
    table: PostgresTableState,
    address: PostgresAddress,
    *,
    evolution: Evolution,
    narrows: Narrowing = Narrowing.NONE,
) -> PostgresMatch:
    """Match columns by the exact name, otherwise ignoring case, as Spark does.

    Args:
        evolution: what may change
        narrows: which columns of the table may also be smaller; the writer checks each value

    Raises:
        SchemaMismatchError: lists the columns that do not fit and shows both schemas.
    """
    renames = needed_renames(table.columns, evolution.renames, address)
    present = renamed(table.columns, renames)
    given, wanted = _given(rows), _wanted(present)
    differences = list(compare(given, wanted, lambda kind, column: holds(column.sql_type, kind)))
    changes = _changes(differences, evolution, renames)
    left_out = (
        set()
        if evolution.adds or narrows is not Narrowing.ANY
        else {
            column.name for found in differences if found.kind is DifferenceKind.NEW for column in found.given
        }
    )
    problems = list(
        problems_in(
            (found for found in differences if not _is_settled(found, evolution, changes, narrows)), _QUERY
        )
    )
    problems += [f"{name!r} occurs twice" for name, count in Counter(rows.names).items() if count > 1]
    key = without_case(rows.names, (column.name for column in present))
    by_key = {key(column.name): column for column in changes.applied_to(present)}
    problems += [
        f"{by_key[key(name)].name!r} is GENERATED ALWAYS in the table: leave it out of the query"
        for name in rows.names
        if key(name) in by_key and by_key[key(name)].is_computed
    ]
    if problems:
        raise query_mismatch(f"Postgres table {address.uri}", problems, given, wanted)
    kept = pa.schema([field for field in rows if field.name not in left_out])
    new = new_columns_of(pa.schema([field for field in kept if key(field.name) not in by_key]), address)
    added = {column.name: column for column in new}
    columns = tuple(added.get(name) or by_key[key(name)] for name in kept.names)
    return PostgresMatch(kept, columns, new, changes)


def _changes(
    differences: Sequence[Difference[pa.DataType, PostgresColumn]],
    evolution: Evolution,
    renames: Sequence[tuple[str, str]],
) -> ColumnChanges:
    types, relaxed = [], []
    for found in differences:
        column = found.table[0].type if found.table else None
        if column is None or not evolution.may_alter((), column.name):
            continue
        if found.kind is DifferenceKind.TYPE:
            kind = widened(column.sql_type, found.given[0].type)
            if kind is not None and not column.is_computed:
                types.append((column.name, kind))
        if found.kind in (DifferenceKind.NULLS, DifferenceKind.REQUIRED) and not column.is_key:
            relaxed += [column.name] if evolution.relaxes((), column.name) else []
    return ColumnChanges(tuple(types), tuple(relaxed), tuple(renames))


def _is_settled(
    found: Difference[pa.DataType, PostgresColumn],
    evolution: Evolution,
    changes: ColumnChanges,
    narrows: Narrowing,
) -> bool:
    """Return True if the difference is none after the batch, or if the writer checks each value."""
    if found.kind is DifferenceKind.CASE:  # columns may differ only in case
        return True
    if found.kind is DifferenceKind.NEW:
        return evolution.adds or narrows is Narrowing.ANY
    column = found.table[0].type if found.table else None
    if column is not None and found.kind is DifferenceKind.TYPE:
        is_checked = narrows is not Narrowing.NONE and may_hold(column.sql_type, found.given[0].type)
        is_checked |= narrows is Narrowing.ANY and is_staged_as(column.sql_type)
        return is_checked or column.name in dict(changes.types)
    return column is not None and found.kind is DifferenceKind.REQUIRED and column.name in changes.relaxed


def _given(rows: pa.Schema) -> list[schema_diff.SchemaColumn[pa.DataType]]:
    return [schema_diff.SchemaColumn(field.name, field.type) for field in rows]


def _wanted(columns: Sequence[PostgresColumn]) -> list[schema_diff.SchemaColumn[PostgresColumn]]:
    return [
        schema_diff.SchemaColumn(column.name, column, column.is_required and not column.is_filled)
        for column in columns
    ]


def quoted_in_spark(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def columns_sql(columns: Sequence[PostgresColumn]) -> str:
    return ", ".join(f"{quoted(column.name)} {column.sql_type}" for column in columns)
