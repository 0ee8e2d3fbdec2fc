"""The current state of a DuckDB table."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..database.contract import Cursor
from ..database.layout import TableColumn, TableState
from .address import DATABASE, DuckDbAddress, literal, quoted

_HERE = f"database_name = '{DATABASE}' AND lower(schema_name) = %s AND lower(table_name) = %s"
_TABLE = f"SELECT coalesce(comment, '') FROM duckdb_tables() WHERE {_HERE}"
_VIEW = f"SELECT 1 FROM duckdb_views() WHERE {_HERE.replace('table_name', 'view_name')}"
_COLUMNS = f"""
SELECT column_name, data_type, is_nullable, column_default FROM duckdb_columns()
WHERE {_HERE} ORDER BY column_index
"""
_KEY = f"""
SELECT constraint_column_names FROM duckdb_constraints()
WHERE {_HERE} AND constraint_type = 'PRIMARY KEY'
"""
_ID = re.compile(r"\(penstock table ([0-9a-f]{32})\)")


def load_if_there(cursor: Cursor, address: DuckDbAddress) -> TableState | None:
    """Load the table; None if it does not exist. Its id is in its comment, because DuckDB numbers the tables
    anew when it opens a file.
    """
    names = (address.schema, address.table)
    found = cursor.execute(_TABLE, names).fetchone()
    if found is None:
        is_view = cursor.execute(_VIEW, names).fetchone() is not None
        return TableState("", (), "it is a view") if is_view else None
    table_id = _ID.search(found[0])
    keys = {name.lower() for name in primary_key(cursor, address)}
    columns = tuple(_column(cursor, address, keys, row) for row in cursor.execute(_COLUMNS, names).fetchall())
    return TableState(table_id[1] if table_id else "", columns)


def primary_key(cursor: Cursor, address: DuckDbAddress) -> Sequence[str]:
    row = cursor.execute(_KEY, (address.schema, address.table)).fetchone()
    return [] if row is None else list(row[0])


def identified(cursor: Cursor, address: DuckDbAddress, table: TableState) -> TableState:
    """Write an id into the table's comment if it has none; what else is in the comment stays."""
    if table.table_id:
        return table
    ((comment,),) = cursor.execute(_TABLE, (address.schema, address.table)).fetchall()
    table_id = uuid.uuid4().hex
    text = f"{comment} (penstock table {table_id})".strip()
    cursor.execute(f"COMMENT ON TABLE {address.sql} IS {literal(text)}")
    return replace(table, table_id=table_id)


def _column(cursor: Cursor, address: DuckDbAddress, keys: set[str], row: Sequence[Any]) -> TableColumn:
    name, kind, is_nullable, default = row
    is_computed = default is not None and _is_computed(cursor, address, name)
    is_required = not is_nullable
    return TableColumn(name, kind, is_required, default is not None, is_computed, name.lower() in keys)


def _is_computed(cursor: Cursor, address: DuckDbAddress, name: str) -> bool:
    """DuckDB lists the expression of a generated column as a default, so only an INSERT tells."""
    return not cursor.connection.accepts(f"INSERT INTO {address.sql} ({quoted(name)}) VALUES (NULL)")
