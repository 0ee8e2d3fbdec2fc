"""The fence table of `penstock.sql`, and the table of refused rows beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.exc import IntegrityError

from ..database.contract import Cursor
from ..database.fence import FENCE_TABLE, REFUSED_TABLE, FenceAndRefused, FenceRow
from .backends import Backend
from .schema import create_table, names_in, type_sql
from .types import DATETIME

_KINDS = {
    **dict.fromkeys(("query_id", "table_name"), "varchar(191)"),
    "batch_id": "bigint",
    "digest": "varchar(255)",
    "table_id": "varchar(64)",
    **dict.fromkeys(("origins", "text"), "text"),
    "content": "binary",
}


class SqlFence(FenceAndRefused):
    """See `Fence`. Changes a row to lock it, which every database with locks understands."""

    for_update = ""

    def __init__(self, backend_name: str, backend: Backend) -> None:
        self._backend = backend
        self.now = backend.now.replace("%", "%%")  # type: ignore[misc]
        self.week_ago = backend.week_ago.replace("%", "%%")  # type: ignore[misc]
        self.skip_locked = backend.for_update  # type: ignore[misc]
        kinds = {**_KINDS, "committed_at": "timestamptz" if backend.has_zones else DATETIME}
        self.column_types = {  # type: ignore[misc]
            name: type_sql(kind, backend_name) for name, kind in kinds.items()
        }

    @property
    def default_time(self) -> str:
        return f"({self._backend.now})"

    def is_there(self, cursor: Cursor, address: Any) -> bool:
        """See `Fence`. True if both tables are there."""
        return names_in(cursor.connection.own, address.schema) >= {FENCE_TABLE, REFUSED_TABLE}

    def _create(self, cursor: Cursor, address: Any, name: str, columns: Sequence[str], comment: str) -> None:
        own = cursor.connection.own
        if name not in names_in(own, address.schema):
            create_table(own, address.schema, name, columns, f"penstock, {comment}")

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
