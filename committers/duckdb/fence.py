"""The fence table in a DuckDB database, and the table of refused rows beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..database.contract import Cursor
from ..database.fence import FenceAndRefused
from .address import DATABASE


class DuckDbFence(FenceAndRefused):
    """See `Fence`. A commit that another one of this process has overtaken fails when it changes the row."""

    column_types: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("query_id", "table_name", "digest", "table_id", "origins", "text"), "VARCHAR"),
        "batch_id": "BIGINT",
        "committed_at": "TIMESTAMP WITH TIME ZONE",
        "content": "BLOB",
    }
    count = (
        "SELECT count(*) FROM duckdb_tables() "
        f"WHERE database_name = '{DATABASE}' AND lower(schema_name) = %s AND table_name IN (%s, %s)"
    )
    insert = "INSERT INTO {fence} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING"
    for_update = skip_locked = ""
    week_ago = "now() - INTERVAL 7 DAY"

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
