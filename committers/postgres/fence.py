"""The fence table: the token of each query, stored next to the tables that the queries write.

A commit locks the query's row, so that two drivers commit one after the other and the second one sees what
the first has done. The row is updated in the transaction that moves the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..contract import BATCH_WRITE_PREFIX, Batch, Token
from .address import PostgresAddress

if TYPE_CHECKING:
    from .connection import Cursor

_DDL = """
CREATE TABLE IF NOT EXISTS {fence} (
    query_id text NOT NULL,
    table_name text NOT NULL,
    batch_id bigint NOT NULL,
    digest text NOT NULL,
    version bigint NOT NULL,
    table_oid text NOT NULL,
    origins text[] NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (query_id, table_name)
)
"""
_NO_BATCH = -1


@dataclass(frozen=True, slots=True)
class FenceRow:
    """The row of one query and table."""

    batch_id: int
    digest: str
    version: int
    """Number of commits that the query has made to the table."""
    table_oid: str

    @property
    def token(self) -> Token | None:
        return None if self.batch_id == _NO_BATCH else Token(self.batch_id, self.digest)


_ROW = "SELECT batch_id, digest, version, table_oid FROM {fence} WHERE query_id = %s AND table_name = %s"


def _sql(address: PostgresAddress) -> str:
    """The fence table's name for a statement with parameters, in which percent signs are doubled."""
    return address.fence_sql.replace("%", "%%")


def create(cursor: Cursor, address: PostgresAddress) -> None:
    cursor.execute(_DDL.format(fence=address.fence_sql))


def is_there(cursor: Cursor, address: PostgresAddress) -> bool:
    row = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (address.fence_sql,)).fetchone()
    return row is not None and bool(row[0])


def read(cursor: Cursor, address: PostgresAddress, query_id: str) -> FenceRow | None:
    """The query's row; None if it has committed nothing."""
    if not is_there(cursor, address):
        return None
    statement = _ROW.format(fence=_sql(address))
    row = cursor.execute(statement, (query_id, address.table)).fetchone()
    return None if row is None else FenceRow(*row)


def lock(cursor: Cursor, address: PostgresAddress, query_id: str, oid: str) -> FenceRow:
    """Lock the query's row until this transaction ends; insert it if there is none.

    Waits for another transaction that holds the row, including one that is inserting it, and then reads its
    result.
    """
    cursor.execute(
        f"INSERT INTO {_sql(address)} "
        "(query_id, table_name, batch_id, digest, version, table_oid, origins) "
        "VALUES (%s, %s, %s, '', 0, %s, '{}') ON CONFLICT DO NOTHING",
        (query_id, address.table, _NO_BATCH, oid),
    )
    statement = _ROW.format(fence=_sql(address)) + " FOR UPDATE"
    row = cursor.execute(statement, (query_id, address.table)).fetchone()
    assert row is not None
    return FenceRow(*row)


def update(cursor: Cursor, address: PostgresAddress, batch: Batch, oid: str, origins: Sequence[str]) -> None:
    """Make the batch the query's token."""
    cursor.execute(
        f"UPDATE {_sql(address)} SET batch_id = %s, digest = %s, version = version + 1, table_oid = %s, "
        "origins = %s, committed_at = now() WHERE query_id = %s AND table_name = %s",
        (batch.batch_id, batch.digest, oid, list(origins), batch.stream.query_id, address.table),
    )
    if batch.stream.query_id.startswith(BATCH_WRITE_PREFIX):
        _prune(cursor, address)


def _prune(cursor: Cursor, address: PostgresAddress) -> None:
    """Delete the rows of old batch writes, which are no longer read, if the user may do so."""
    right = cursor.execute("SELECT has_table_privilege(%s, 'DELETE')", (address.fence_sql,)).fetchone()
    if right == (True,):
        fence = _sql(address)
        cursor.execute(
            f"DELETE FROM {fence} WHERE (query_id, table_name) IN (SELECT query_id, table_name FROM {fence} "
            "WHERE query_id LIKE %s AND table_name = %s AND committed_at < now() - interval '7 days' "
            "FOR UPDATE SKIP LOCKED)",  # another batch write may be doing this
            (f"{BATCH_WRITE_PREFIX}%", address.table),
        )


def accept(cursor: Cursor, address: PostgresAddress, query_id: str, oid: str) -> None:
    """Accept the table with this OID as the one that the query wrote."""
    if is_there(cursor, address):
        cursor.execute(
            f"UPDATE {_sql(address)} SET table_oid = %s WHERE query_id = %s AND table_name = %s",
            (oid, query_id, address.table),
        )


def remove(cursor: Cursor, address: PostgresAddress, query_id: str) -> None:
    """Remove the row of a query that has ended for good."""
    if is_there(cursor, address):
        cursor.execute(
            f"DELETE FROM {_sql(address)} WHERE query_id = %s AND table_name = %s", (query_id, address.table)
        )


def last_of_origin(cursor: Cursor, address: PostgresAddress, origin: str, oid: str) -> str | None:
    """The query that was the last to commit to the table from this origin."""
    row = cursor.execute(
        f"SELECT query_id FROM {_sql(address)} WHERE table_name = %s AND table_oid = %s "
        "AND batch_id >= 0 AND %s = ANY(origins) ORDER BY committed_at DESC LIMIT 1",
        (address.table, oid, origin),
    ).fetchone()
    return None if row is None else str(row[0])
