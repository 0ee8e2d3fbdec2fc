"""The fence table of `penstock.sql`, and the table of refused rows beside it."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import IntegrityError

from ..contract import BATCH_WRITE_PREFIX
from ..database.contract import Cursor
from ..database.fence import FENCE_TABLE, Fence, FenceRow
from .address import REFUSED_TABLE
from .backends import Backend
from .schema import create_fence, names_in


class SqlFence(Fence):
    """See `Fence`. Changes a row to lock it, which every database with locks understands."""

    for_update = ""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.now = backend.now.replace("%", "%%")  # type: ignore[misc]

    def is_there(self, cursor: Cursor, address: Any) -> bool:
        """See `Fence`. True if both tables are there."""
        return names_in(cursor.connection.own, address.schema) >= {FENCE_TABLE, REFUSED_TABLE}

    def create(self, cursor: Cursor, address: Any) -> None:
        create_fence(cursor.connection.own, address)

    def lock(self, cursor: Cursor, address: Any, query_id: str, table_id: str) -> FenceRow:
        fence, key = address.fence_sql.replace("%", "%%"), (query_id, address.table)
        touch = f"UPDATE {fence} SET version = version WHERE query_id = %s AND table_name = %s"
        if not cursor.execute(touch, key).rowcount:
            insert = (
                f"INSERT INTO {fence} (query_id, table_name, batch_id, digest, version, table_id, origins) "
                "VALUES (%s, %s, -1, '', 0, %s, %s)"
            )
            nested = cursor.connection.begin_nested()
            try:
                cursor.execute(insert, (*key, table_id, self.origins(())))
                nested.commit()
            except IntegrityError:  # another transaction has inserted it
                nested.rollback()
                cursor.execute(touch, key)
        row = cursor.execute(self._select(address), key).fetchone()
        assert row is not None
        return FenceRow(*row)

    def prune(self, cursor: Cursor, address: Any) -> None:
        fence = address.fence_sql.replace("%", "%%")
        rows = cursor.execute(
            f"SELECT query_id FROM {fence} WHERE query_id LIKE %s AND table_name = %s "
            f"AND committed_at < {self._backend.week_ago.replace('%', '%%')}{self._backend.for_update}",
            (f"{BATCH_WRITE_PREFIX}%", address.table),
        ).fetchall()
        for (query_id,) in rows:
            self.remove(cursor, address, query_id)
