"""Checks made before any row is written: the table, its columns, the privileges of the user."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ..changes.history import check_history
from ..changes.kept_values import check_partial
from ..contract import Changes, History, Mode
from ..errors import AccessRefusedError, ConfigurationError, SchemaMismatchError, TableNotSupportedError
from ..file_tables.evolution import NO_EVOLUTION, Evolution, Narrowing
from . import fence
from .address import PostgresAddress, quoted
from .columns import ColumnChanges, PostgresColumn
from .table import (
    PostgresMatch,
    PostgresTableState,
    check_names,
    check_supported,
    columns_sql,
    load_if_there,
    match,
    new_columns_of,
)
from .tombstones import Tombstones
from .types import UTF8
from .unique_keys import check_unique

if TYPE_CHECKING:
    from .connection import Cursor


_CREATE_LOCK_KEY = 0x70656E73746F7067  # "penstopg" in ASCII


@dataclass(frozen=True, slots=True)
class PostgresTableLayout:
    table_id: str
    rows: pa.Schema
    """The columns of the query that the table has, or gets."""
    columns: tuple[PostgresColumn, ...]
    """The table's column for each of them, after the changes."""
    new_columns: tuple[str, ...]
    changes: ColumnChanges
    """Of other columns."""
    created: bool
    encoding: str
    """Of the database."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the query asks for."""

    create: bool = True
    evolution: Evolution = NO_EVOLUTION
    mode: Mode = "append"
    """Column names have the case of the query's columns."""
    staging_schema: str = ""
    narrows: Narrowing = Narrowing.NONE
    """See `match`."""


def plan(
    cursor: Cursor, address: PostgresAddress, rows: pa.Schema, options: PlanOptions
) -> PostgresTableLayout:
    """Plan a batch. Create the table if it does not exist, and the fence table. Columns are added and changed
    by the commit.

    Raises:
        ConfigurationError: the table does not exist and may not be created.
        SchemaMismatchError: the columns do not fit.
        TableNotSupportedError: rows cannot be committed to the table.
        AccessRefusedError: the user lacks a privilege.
    """
    if not rows:
        raise SchemaMismatchError(
            f"The query's rows for the Postgres table {address.uri} have no columns. Nothing was written. "
            "Select at least one."
        )
    encoding = cursor.connection.info.parameter_status("server_encoding") or UTF8
    check_names(rows, address, encoding)
    table = load_if_there(cursor, address)
    created = table is None
    if table is None or not fence.is_there(cursor, address):
        table = _create(cursor, address, rows, options)
    check_supported(table, address, options.mode)
    if isinstance(options.mode, Changes) and options.mode.history is not None:
        check_history(options.mode.history, [column.name for column in table.columns])
    fit = match(
        rows,
        table,
        address,
        evolution=options.evolution.of_batch(rows, options.mode),
        narrows=options.narrows,
    )
    _check_alterable(cursor, address, table, fit.changes)
    tombstones = None
    if isinstance(options.mode, Changes):
        changes = _in_table(options.mode, fit)
        check_partial(changes, [*rows.names, *(column.name for column in table.columns)])
        if changes.history is not None:
            _check_ends(changes.history, fit)
        check_unique(cursor, table, address, changes.identity)
        if changes.late_rows == "ignore":
            types = {column.name: column.sql_type for column in fit.columns}
            tombstones = Tombstones(address, table.oid, changes, types)
            tombstones.create(cursor)
    _check_rights(cursor, address, table, fit, options, tombstones)
    return PostgresTableLayout(
        table.oid,
        fit.rows,
        fit.columns,
        tuple(column.name for column in fit.new),
        fit.changes,
        created,
        encoding,
    )


_USES = """
SELECT a.attname, pg_describe_object(d.classid, d.objid, d.objsubid)
FROM pg_depend d JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.refobjid = %(table)s::oid AND a.attname = ANY (%(columns)s)
    AND d.classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass, 'pg_policy'::regclass)
UNION ALL
SELECT a.attname, 'the partition key'
FROM pg_partitioned_table p JOIN pg_attribute a ON a.attrelid = p.partrelid AND a.attnum = ANY (p.partattrs)
WHERE p.partrelid = %(table)s::oid AND a.attname = ANY (%(columns)s)
UNION ALL
SELECT a.attname, 'the generated column ' || g.attname
FROM pg_attrdef f
    JOIN pg_attribute g ON g.attrelid = f.adrelid AND g.attnum = f.adnum AND g.attgenerated <> ''
    JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
        OR d.classid = 'pg_class'::regclass AND d.objid = g.attrelid AND d.objsubid = g.attnum
    JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid AND a.attnum <> g.attnum
WHERE g.attrelid = %(table)s::oid AND d.refobjid = g.attrelid AND a.attname = ANY (%(columns)s)
"""


def _check_alterable(
    cursor: Cursor, address: PostgresAddress, table: PostgresTableState, changes: ColumnChanges
) -> None:
    """
    Raises:
        TableNotSupportedError: Postgres would refuse to give a column another type.
    """
    old_names = {new: old for old, new in changes.renames}
    columns = [old_names.get(name, name) for name, _ in changes.types]
    if not columns:
        return
    uses = cursor.execute(_USES, {"table": table.oid, "columns": columns}).fetchall()
    if uses:
        names = ", ".join(sorted({f"{what} uses {name!r}" for name, what in uses}))
        raise TableNotSupportedError(
            f"The columns of the Postgres table {address.uri} cannot get wider types: {names}. Nothing was "
            "written. Drop what uses them, widen the columns, and create it again; or cast the columns in "
            "the query."
        )


def _in_table(changes: Changes, fit: PostgresMatch) -> Changes:
    """Return the changes with the names of the table's columns, where it has them."""
    names = dict(zip(fit.rows.names, (column.name for column in fit.columns), strict=True))
    keys = tuple([names[name] for name in changes.keys])
    history = changes.history
    if history is not None:
        history = History(*(names[name] for name in (history.valid_from, *changes.ends)))
    order_by = tuple([names.get(name, name) for name in changes.order_by])
    return replace(changes, keys=keys, order_by=order_by, history=history)


def _check_ends(history: History, fit: PostgresMatch) -> None:
    types = {column.name: column.sql_type for column in fit.columns}
    begin, end = types[history.valid_from], types[history.valid_to]
    if begin != end:
        raise SchemaMismatchError(
            f"history=true: {history.valid_from!r} is {begin} and {history.valid_to!r} is {end} in the "
            "table. Both hold values of orderBy, so give them one type. Nothing was written."
        )


def _create(
    cursor: Cursor, address: PostgresAddress, rows: pa.Schema, options: PlanOptions
) -> PostgresTableState:
    """Create the table and the fence table. Other processes wait, then find both."""
    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_LOCK_KEY,))
    if load_if_there(cursor, address) is None:
        if not options.create:
            raise ConfigurationError(
                f"There is no Postgres table {address.uri}, and createTable=false. Create it, or fix dbtable."
            )
        columns = columns_sql(new_columns_of(rows, address))
        if isinstance(options.mode, Changes):
            columns += f", PRIMARY KEY ({', '.join(map(quoted, options.mode.identity))})"
        cursor.execute(f"CREATE TABLE {address.sql} ({columns})")
    fence.create(cursor, address)
    table = load_if_there(cursor, address)
    assert table is not None
    return table


_RIGHTS = """
SELECT has_table_privilege(%(table)s::oid, 'INSERT'),
    has_table_privilege(%(table)s::oid, 'DELETE'),
    pg_has_role((SELECT relowner FROM pg_class WHERE oid = %(table)s::oid), 'USAGE'),
    has_table_privilege(%(fence)s, 'SELECT') AND has_table_privilege(%(fence)s, 'INSERT')
        AND has_table_privilege(%(fence)s, 'UPDATE'),
    has_schema_privilege(%(staging)s, 'CREATE'),
    has_table_privilege(%(table)s::oid, 'SELECT') AND has_table_privilege(%(table)s::oid, 'UPDATE'),
    has_database_privilege(current_database(), 'TEMPORARY'),
    has_table_privilege(%(tombstones)s, 'SELECT') AND has_table_privilege(%(tombstones)s, 'INSERT')
        AND has_table_privilege(%(tombstones)s, 'UPDATE') AND has_table_privilege(%(tombstones)s, 'DELETE')
"""


def _check_rights(
    cursor: Cursor,
    address: PostgresAddress,
    table: PostgresTableState,
    fit: PostgresMatch,
    options: PlanOptions,
    tombstones: Tombstones | None,
) -> None:
    names = {
        "table": table.oid,
        "fence": address.fence_sql,
        "staging": options.staging_schema or address.schema,
        "tombstones": None if tombstones is None else tombstones.sql,
    }
    row = cursor.execute(_RIGHTS, names).fetchone()
    assert row is not None
    inserts, deletes, owns, fences, stages, updates, has_temporary, remembers = row
    changes = options.mode if isinstance(options.mode, Changes) else None
    may_delete = options.mode == "overwrite" if changes is None else bool(changes.delete_when)
    missing = [
        what
        for has, what in (
            (inserts, f"INSERT on {address.sql}"),
            (
                deletes or not may_delete,
                f"DELETE on {address.sql}, to {'replace its' if changes is None else 'delete'} rows",
            ),
            (updates or changes is None, f"SELECT and UPDATE on {address.sql}, to replace rows"),
            (has_temporary or changes is None, "TEMPORARY on the database, for the last row of each key"),
            (
                remembers or tombstones is None,
                f"SELECT, INSERT, UPDATE and DELETE on {names['tombstones']}, for deleted keys",
            ),
            (owns or not (fit.new or fit.changes), f"ownership of {address.sql}, to add or change columns"),
            (fences, f"SELECT, INSERT and UPDATE on {address.fence_sql}"),
            (stages, f"CREATE on schema {names['staging']}, for staging tables"),
        )
        if not has
    ]
    if missing:
        raise AccessRefusedError(
            f"The user of the Postgres table {address.uri} lacks privileges: {'; '.join(missing)}. Nothing "
            "was written. Grant them (docs/postgres.md), or use another user in url."
        )
