"""A Postgres table that is read: what it is, and the transactions in which it is read. Runs anywhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import IsolationLevel

from ...committers.database.contract import Cursor
from ...committers.database.prepared import BUSY_S
from ...committers.database.server import IDLE_TASK_TIMEOUT_S
from ...committers.errors import ConfigurationError, PenstockError, RetryableError
from ...committers.postgres.address import PostgresAddress
from ...committers.postgres.connection import Connection, PostgresServer
from ...committers.postgres.dialect import DIALECT
from .types import PostgresColumn

TABLE, PARTITIONED, VIEW = "r", "p", "v"
_KINDS = {
    PARTITIONED: "a partitioned table",
    VIEW: "a view",
    "m": "a materialized view",
    "f": "a foreign table",
}
_LOCKED = (TABLE, PARTITIONED, VIEW)
_SESSION = (
    "SET timezone = 'UTC'; SET extra_float_digits = 3; SET bytea_output = 'hex'; "
    "SET intervalstyle = 'postgres'"
)
"""Settings that affect the text form of values."""

_TABLE = """
SELECT c.oid::text, c.relkind::text, c.relfilenode::bigint, coalesce(pg_relation_size(c.oid), 0),
    c.relhassubclass, coalesce((SELECT amname FROM pg_am WHERE pg_am.oid = c.relam), '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind = ANY ('{r,p,v,m,f}')
"""
_COLUMNS = """
SELECT a.attname, format_type(base.oid, base.typmod), coalesce(element.typtype, base.kind) = 'e',
    a.attnotnull AND NOT (c.relkind = 'r' AND c.relhassubclass) AND NOT EXISTS (
        SELECT FROM pg_constraint k  -- NOT NULL ... NOT VALID
        WHERE k.conrelid = c.oid AND k.contype = 'n' AND a.attnum = ANY (k.conkey) AND NOT k.convalidated
    )
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
CROSS JOIN LATERAL (
    WITH RECURSIVE domains (oid, typmod, kind, base_oid, base_typmod, element_oid) AS (
        SELECT t.oid, a.atttypmod, t.typtype, t.typbasetype, t.typtypmod,
            CASE WHEN t.typcategory = 'A' THEN t.typelem END
        FROM pg_type t WHERE t.oid = a.atttypid
        UNION ALL
        SELECT t.oid, d.base_typmod, t.typtype, t.typbasetype, t.typtypmod,
            CASE WHEN t.typcategory = 'A' THEN t.typelem END
        FROM domains d JOIN pg_type t ON t.oid = d.base_oid WHERE d.kind = 'd'
    )
    SELECT oid, typmod, kind, element_oid FROM domains WHERE kind <> 'd'
) base
LEFT JOIN pg_type element ON element.oid = base.element_oid
WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True)
class ReadTable:
    """What is read."""

    table_id: str
    """Its OID."""
    kind: str
    """`relkind`"""
    file_id: int
    """Changes when the table is rewritten, which moves its rows."""
    size_bytes: int
    has_children: bool
    storage: str
    """The access method: `heap` for tables as Postgres itself stores them."""
    columns: tuple[PostgresColumn, ...]

    @property
    def undivided(self) -> str:
        """Why it cannot be divided by the pages of its rows; empty if it can."""
        if self.kind != TABLE:
            return f"is {_KINDS[self.kind]}"
        if self.has_children:
            return "has tables that inherit from it"
        return "" if self.storage == "heap" else f"is stored as {self.storage}"


def find_table(server: PostgresServer, address: PostgresAddress) -> ReadTable:
    """
    Raises:
        ConfigurationError: there is no such table.
        RetryableError: the database cannot be reached now.
    """
    with connected(server, address) as connection:
        found = load(connection.cursor(), address)
    if found is None:
        raise ConfigurationError(
            f"There is no {address.title}, or its user may not see it. Check the options url and dbtable. "
            "Nothing was read."
        )
    return found


def load(cursor: Cursor, address: PostgresAddress) -> ReadTable | None:
    """Load the table as the transaction sees it; None if there is none."""
    row = cursor.execute(_TABLE, (address.schema, address.table)).fetchone()
    if row is None:
        return None
    columns = cursor.execute(_COLUMNS, (row[0],)).fetchall()
    return ReadTable(*(*row, tuple(PostgresColumn(*column) for column in columns)))


# Transactions ---------------------------------------------------------------------------------------------


@contextmanager
def connected(server: PostgresServer, address: PostgresAddress) -> Iterator[Connection]:
    """Open a connection whose transactions only read, and have one snapshot each.

    Raises:
        RetryableError: the database cannot be reached now.
        PenstockError: the database cannot compute a row.
    """
    with closing(server.connect(IDLE_TASK_TIMEOUT_S, IDLE_TASK_TIMEOUT_S)) as connection:
        try:
            connection.execute(_SESSION)
            connection.commit()
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            yield connection
        except server.errors as error:
            raise _failed(server, address, error) from None  # its details contain values of rows


def _failed(server: PostgresServer, address: PostgresAddress, error: Any) -> PenstockError:
    if server.is_about_values(error):
        return PenstockError(
            f"The {address.title} cannot be read: {server.in_short(error)}. Reading has stopped. Leave the "
            "row out with the option where, or correct the view."
        )
    return server.failed(error, "Reading has stopped")


def take_snapshot(connection: Connection, address: PostgresAddress, kind: str) -> Cursor:
    """Begin the transaction in which rows are read, once no batch with `commit=prepared` is partly visible.

    The table is locked before the snapshot is taken. Otherwise TRUNCATE or a rewrite in between would show
    this snapshot an empty table, or rows in other places.

    Raises:
        RetryableError: such a batch is not finished.
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        cursor = connection.cursor()
        if kind in _LOCKED:
            cursor.execute(f"LOCK TABLE {address.sql} IN ACCESS SHARE MODE")
        if not DIALECT.prepared.are_being_committed(cursor, address):
            return cursor
        connection.rollback()
        if time.monotonic() > deadline:
            raise RetryableError(
                f"A batch of a query with commit=prepared is partly visible in the {address.title}, because "
                "its commit is not finished. Nothing was read. Start that query again, or run penstock "
                "recover. Then read again."
            )
        time.sleep(0.05)
