"""The fence table in a DuckDB database, and the table of refused rows beside it."""

from __future__ import annotations

from typing import Any

from ..contract import BATCH_WRITE_PREFIX
from ..database.contract import Cursor
from ..database.fence import FENCE_TABLE, Fence
from .address import DATABASE, REFUSED_TABLE

_REFUSED = """
CREATE TABLE IF NOT EXISTS {name} (
    query_id VARCHAR NOT NULL,
    table_name VARCHAR NOT NULL,
    batch_id BIGINT NOT NULL,
    letter_id VARCHAR NOT NULL,
    row_id VARCHAR NOT NULL,
    code VARCHAR NOT NULL,
    message VARCHAR NOT NULL,
    refused_at VARCHAR NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (query_id, table_name, batch_id, letter_id)
)
"""

_THERE = (
    "SELECT count(*) FROM duckdb_tables() "
    f"WHERE database_name = '{DATABASE}' AND lower(schema_name) = %s AND table_name IN (%s, %s)"
)


class DuckDbFence(Fence):
    """See `Fence`. A commit that another one of this process has overtaken fails when it changes the row."""

    ddl = """
CREATE TABLE IF NOT EXISTS {fence} (
    query_id VARCHAR NOT NULL,
    table_name VARCHAR NOT NULL,
    batch_id BIGINT NOT NULL,
    digest VARCHAR NOT NULL,
    version BIGINT NOT NULL,
    table_id VARCHAR NOT NULL,
    origins VARCHAR NOT NULL,
    committed_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT now(),
    PRIMARY KEY (query_id, table_name)
)
"""
    insert = "INSERT INTO {fence} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING"
    for_update = ""

    def is_there(self, cursor: Cursor, address: Any) -> bool:
        """See `Fence`. True if both tables are there."""
        names = (address.schema, FENCE_TABLE, REFUSED_TABLE)
        ((count,),) = cursor.execute(_THERE, names).fetchall()
        return int(count) == 2

    def create(self, cursor: Cursor, address: Any) -> None:
        super().create(cursor, address)
        cursor.execute(_REFUSED.format(name=address.refused_sql))

    def touch(self, cursor: Cursor, address: Any) -> None:
        """Let one fail of two transactions that change rows of the table at once.

        Both change a row of no query. A new time: DuckDB leaves out an UPDATE that changes no value.
        """
        self.lock(cursor, address, "", "")
        cursor.execute(
            f"UPDATE {address.fence_sql.replace('%', '%%')} SET committed_at = now() "
            "WHERE query_id = '' AND table_name = %s",
            (address.table,),
        )

    def prune(self, cursor: Cursor, address: Any) -> None:
        cursor.execute(
            f"DELETE FROM {address.fence_sql.replace('%', '%%')} WHERE starts_with(query_id, %s) "
            "AND table_name = %s AND committed_at < now() - INTERVAL 7 DAY",
            (BATCH_WRITE_PREFIX, address.table),
        )
