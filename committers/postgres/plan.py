"""Checks made before any row is written: the table, its columns, the privileges of the user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import AccessRefusedError, ConfigurationError, SchemaMismatchError
from . import fence
from .address import PostgresAddress
from .table import (
    PostgresColumn,
    PostgresMatch,
    PostgresTableState,
    check_names,
    check_supported,
    columns_sql,
    load_if_there,
    match,
    new_columns_of,
)
from .types import UTF8

if TYPE_CHECKING:
    from .connection import Cursor


_CREATE_LOCK_KEY = 0x70656E73746F7067  # "penstopg" in ASCII


@dataclass(frozen=True, slots=True)
class PostgresTableLayout:
    table_id: str
    columns: tuple[PostgresColumn, ...]
    """The table's column for each column of the query, including new ones."""
    new_columns: tuple[str, ...]
    created: bool
    encoding: str
    """Of the database."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the query asks for."""

    create: bool = True
    evolve: bool = False
    overwrite: bool = False
    staging_schema: str = ""
    narrows: bool = False
    """See `match`."""


def plan(
    cursor: Cursor, address: PostgresAddress, rows: pa.Schema, options: PlanOptions
) -> PostgresTableLayout:
    """Plan a batch. Create the table if it does not exist, and the fence table. New columns are added by the
    commit.

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
    check_supported(table, address, overwrite=options.overwrite)
    fit = match(rows, table, address, evolve=options.evolve, narrows=options.narrows)
    _check_rights(cursor, address, table, fit, options)
    return PostgresTableLayout(
        table.oid, fit.columns, tuple(column.name for column in fit.new), created, encoding
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
        cursor.execute(f"CREATE TABLE {address.sql} ({columns_sql(new_columns_of(rows, address))})")
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
    has_schema_privilege(%(staging)s, 'CREATE')
"""


def _check_rights(
    cursor: Cursor,
    address: PostgresAddress,
    table: PostgresTableState,
    fit: PostgresMatch,
    options: PlanOptions,
) -> None:
    names = {
        "table": table.oid,
        "fence": address.fence_sql,
        "staging": options.staging_schema or address.schema,
    }
    row = cursor.execute(_RIGHTS, names).fetchone()
    assert row is not None
    inserts, deletes, owns, fences, stages = row
    missing = [
        what
        for has, what in (
            (inserts, f"INSERT on {address.sql}"),
            (deletes or not options.overwrite, f"DELETE on {address.sql}, to replace its rows"),
            (owns or not fit.new, f"ownership of {address.sql}, to add columns"),
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
