"""The fence table in MySQL, and the table of refused rows beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..database.contract import Cursor
from ..database.fence import FenceAndRefused


class MySqlFence(FenceAndRefused):
    """See `Fence`."""

    column_types: ClassVar[Mapping[str, str]] = {
        "query_id": "varchar(191)",
        "table_name": "varchar(64)",
        "batch_id": "bigint",
        "digest": "varchar(255)",
        "table_id": "varchar(64)",
        "origins": "longtext",
        "committed_at": "datetime(6)",
        "text": "longtext",
        "refused_at": "varchar(40)",
        "content": "longblob",
    }
    table_options = " ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin COMMENT '{comment}'"
    count = (
        "SELECT count(*) FROM information_schema.tables WHERE table_schema = %s AND table_name IN (%s, %s)"
    )
    # INSERT IGNORE would lock the row for reading first, and two drivers would deadlock
    insert = "INSERT INTO {fence} ({columns}) VALUES ({values}) ON DUPLICATE KEY UPDATE version = version"
    now = "CURRENT_TIMESTAMP(6)"
    week_ago = f"{now} - INTERVAL 7 DAY"

    def prune(self, cursor: Cursor, address: Any) -> None:
        from .connection import DatabaseError, is_denied

        try:
            super().prune(cursor, address)
        except DatabaseError as error:  # of a statement; the transaction goes on
            if not is_denied(error):
                raise
