"""The current state of a ClickHouse table, and its staging tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..database.contract import Cursor
from ..database.layout import TableColumn, TableState
from .address import ClickHouseAddress, literal, qualified, quoted
from .types import is_nullable

PART = "penstock_part"
"""Column with the number of the INSERT that a row came with; 0 for rows of other writers. `SELECT *` leaves
it out."""
PART_TYPE = "UInt64 MATERIALIZED 0"

VERSION, DELETED = "penstock_version", "penstock_deleted"
"""Columns of tables that are changed by key: of rows of one key the greatest version counts, unless it is
deleted. `SELECT *` leaves them out."""
VERSION_TYPE = "UInt64 MATERIALIZED toUnixTimestamp64Micro(now64(6))"
DELETED_TYPE = "UInt8 MATERIALIZED 0"
OWN = (PART, VERSION, DELETED)

_TABLE = """
SELECT engine, toString(uuid), arrayStringConcat(dependencies_table, ', '),
    (SELECT engine FROM system.databases WHERE name = %s)
FROM system.tables WHERE database = %s AND name = %s
"""
_COLUMNS = """
SELECT name, type, default_kind, is_in_partition_key OR is_in_sorting_key FROM system.columns
WHERE database = %s AND table = %s ORDER BY position
"""
_HAS_TTL = """
SELECT 1 FROM system.tables WHERE database = %s AND name = %s AND position(engine_full, ' TTL ') > 0
"""
_COMPUTED = ("MATERIALIZED", "ALIAS")


def load(cursor: Cursor, address: ClickHouseAddress) -> TableState | None:
    """Load the table; None if it does not exist."""
    names = (address.schema, address.table)
    found = cursor.execute(_TABLE, (address.schema, *names)).fetchone()
    if found is None:
        return None
    engine, table_id, views, of_database = found
    rows = cursor.execute(_COLUMNS, names).fetchall()
    columns = tuple(_column(*row[:3]) for row in rows if row[0] not in OWN)
    kinds = {name: (kind, default) for name, kind, default, _ in rows}
    unsupported = _unsupported(engine, of_database, views)
    return TableState(
        table_id, columns, unsupported, unsupported_append=_unsupported_append(address, engine, kinds)
    )


def _column(name: str, kind: str, default: str) -> TableColumn:
    is_required = not is_nullable(kind)
    return TableColumn(name, kind, is_required, is_filled=True, is_computed=default in _COMPUTED)


def _unsupported(engine: str, of_database: str, views: str) -> str:
    if engine not in ("MergeTree", "ReplacingMergeTree"):
        return (
            f"its engine is {engine}, and Penstock appends to MergeTree only: others replicate, merge or "
            "distribute rows. Write a MergeTree table, and let ClickHouse read it"
        )
    if of_database != "Atomic":
        return f"the engine of its database is {of_database}, not Atomic"
    if views:
        return (
            f"materialized views read its INSERTs: {views}. Partitions that are moved into it do not reach "
            "them"
        )
    return ""


def _unsupported_append(address: ClickHouseAddress, engine: str, kinds: Any) -> str:
    if engine == "ReplacingMergeTree":
        return (
            "its engine is ReplacingMergeTree, which keeps one row of each key. Append to a MergeTree table, "
            "or change the rows by key with writeMode=upsert"
        )
    if kinds.get(PART) != ("UInt64", "MATERIALIZED"):
        return (
            f"it has no column {PART}, which tells after a crash of the server what has arrived. Add it: "
            f"ALTER TABLE {address.sql} ADD COLUMN {PART} {PART_TYPE}. SELECT * does not show it"
        )
    return ""


def columns_of(cursor: Cursor, schema: str, name: str) -> dict[str, str]:
    """Return the types of the columns by name."""
    rows = cursor.execute(_COLUMNS, (schema, name)).fetchall()
    return {column: kind for column, kind, default, _ in rows if default != "ALIAS"}


def exist(cursor: Cursor, schema: str, names: Sequence[str]) -> set[str]:
    """Return those of the names that are tables."""
    if not names:
        return set()
    given = ", ".join(map(literal, names))
    select = f"SELECT name FROM system.tables WHERE database = {literal(schema)} AND name IN ({given})"
    return {name for (name,) in cursor.execute(select).fetchall()}


def create_like(
    cursor: Cursor, address: ClickHouseAddress, name: str, comment: str, *, keeps_rows: bool = False
) -> None:
    """Create an empty table with the columns, keys and settings of the table. Rows do not expire in it.

    Args:
        keeps_rows: only with the columns; no row replaces another one
    """
    sql = qualified(address.schema, name)
    engine = " ENGINE = MergeTree ORDER BY tuple()" if keeps_rows else ""
    cursor.execute(f"CREATE TABLE {sql} AS {address.sql}{engine} COMMENT {literal(comment)}")
    if cursor.execute(_HAS_TTL, (address.schema, name)).fetchall():
        cursor.execute(f"ALTER TABLE {sql} REMOVE TTL")


def add_missing(cursor: Cursor, schema: str, name: str, wanted: dict[str, str]) -> None:
    """Add columns to a staging table that it does not have."""
    there = columns_of(cursor, schema, name)
    missing = [f"ADD COLUMN {quoted(one)} {kind}" for one, kind in wanted.items() if one not in there]
    if missing:
        cursor.execute(f"ALTER TABLE {qualified(schema, name)} {', '.join(missing)}")
