"""The fence table in Postgres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ..contract import BATCH_WRITE_PREFIX
from ..database.contract import Cursor, TableAddress
from ..database.fence import Fence


class PostgresFence(Fence):
    """See `Fence`."""

    column_types: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("query_id", "table_name", "digest", "table_id"), "text"),
        "batch_id": "bigint",
        "origins": "text[]",
        "committed_at": "timestamptz",
    }
    id_column = "table_oid"
    insert = "INSERT INTO {fence} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING"

    def is_there(self, cursor: Cursor, address: TableAddress) -> bool:
        row = cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (address.fence_sql,)).fetchone()
        return row is not None and bool(row[0])

    def origins(self, origins: Sequence[str]) -> list[str]:
        return list(origins)

    def prune(self, cursor: Cursor, address: TableAddress) -> None:
        right = cursor.execute("SELECT has_table_privilege(%s, 'DELETE')", (address.fence_sql,)).fetchone()
        if right == (True,):
            fence = address.fence_sql.replace("%", "%%")
            cursor.execute(
                f"DELETE FROM {fence} WHERE (query_id, table_name) IN "
                f"(SELECT query_id, table_name FROM {fence} "
                "WHERE query_id LIKE %s AND table_name = %s AND committed_at < now() - interval '7 days' "
                "FOR UPDATE SKIP LOCKED)",  # another batch write may be doing this
                (f"{BATCH_WRITE_PREFIX}%", address.table),
            )

    def last_of_origin(self, cursor: Cursor, address: TableAddress, origin: str, table_id: str) -> str | None:
        row = cursor.execute(
            f"SELECT query_id FROM {address.fence_sql.replace('%', '%%')} "
            "WHERE table_name = %s AND table_oid = %s "
            "AND batch_id >= 0 AND %s = ANY(origins) ORDER BY committed_at DESC LIMIT 1",
            (address.table, table_id, origin),
        ).fetchone()
        return None if row is None else str(row[0])
