"""The fence table in MySQL, and the table of refused rows beside it."""

from __future__ import annotations

from typing import Any

from ..contract import BATCH_WRITE_PREFIX
from ..database.contract import Cursor
from ..database.fence import FENCE_TABLE, Fence
from .address import REFUSED_TABLE

_TABLE_OPTIONS = "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
_REFUSED = f"""
CREATE TABLE IF NOT EXISTS {{name}} (
    query_id varchar(191) NOT NULL,
    table_name varchar(64) NOT NULL,
    batch_id bigint NOT NULL,
    letter_id varchar(191) NOT NULL,
    row_id longtext NOT NULL,
    code longtext NOT NULL,
    message longtext NOT NULL,
    refused_at varchar(40) NOT NULL,
    content longblob NOT NULL,
    PRIMARY KEY (query_id, table_name, batch_id, letter_id)
) {_TABLE_OPTIONS} COMMENT 'penstock, refused rows until the manifest store has them'
"""
_THERE = "SELECT count(*) FROM information_schema.tables WHERE table_schema = %s AND table_name IN (%s, %s)"


class MySqlFence(Fence):
    """See `Fence`."""

    ddl = f"""
CREATE TABLE IF NOT EXISTS {{fence}} (
    query_id varchar(191) NOT NULL,
    table_name varchar(64) NOT NULL,
    batch_id bigint NOT NULL,
    digest varchar(255) NOT NULL,
    version bigint NOT NULL,
    table_id varchar(64) NOT NULL,
    origins longtext NOT NULL,
    committed_at datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
    PRIMARY KEY (query_id, table_name)
) {_TABLE_OPTIONS} COMMENT 'penstock, the last batch of each query'
"""
    # INSERT IGNORE would lock the row for reading first, and two drivers would deadlock
    insert = "INSERT INTO {fence} ({columns}) VALUES ({values}) ON DUPLICATE KEY UPDATE version = version"
    now = "CURRENT_TIMESTAMP(6)"

    def is_there(self, cursor: Cursor, address: Any) -> bool:
        """See `Fence`. True if both tables are there."""
        names = (address.schema, FENCE_TABLE, REFUSED_TABLE)
        ((count,),) = cursor.execute(_THERE, names).fetchall()
        return int(count) == 2

    def create(self, cursor: Cursor, address: Any) -> None:
        super().create(cursor, address)
        cursor.execute(_REFUSED.format(name=address.refused_sql))

    def remove(self, cursor: Cursor, address: Any, query_id: str) -> None:
        super().remove(cursor, address, query_id)
        if self.is_there(cursor, address):
            refused = address.refused_sql.replace("%", "%%")
            delete = f"DELETE FROM {refused} WHERE query_id = %s AND table_name = %s"
            cursor.execute(delete, (query_id, address.table))

    def prune(self, cursor: Cursor, address: Any) -> None:
        from .connection import DatabaseError, is_denied

        fence = address.fence_sql.replace("%", "%%")
        try:
            rows = cursor.execute(
                f"SELECT query_id FROM {fence} WHERE query_id LIKE %s AND table_name = %s "
                "AND committed_at < CURRENT_TIMESTAMP(6) - INTERVAL 7 DAY FOR UPDATE SKIP LOCKED",
                (f"{BATCH_WRITE_PREFIX}%", address.table),
            ).fetchall()
            delete = f"DELETE FROM {fence} WHERE query_id = %s AND table_name = %s"
            for (query_id,) in rows:
                cursor.execute(delete, (query_id, address.table))
        except DatabaseError as error:  # of a statement; the transaction goes on
            if not is_denied(error):
                raise
