"""Maintenance of a DuckLake table, by DuckLake's own functions. Runs in the delivery process."""

from __future__ import annotations

from . import connection
from .connection import LakeServer, literal
from .table import load_if_there

RETENTION_DAYS = 7
"""How long readers of older snapshots can still open a file that DuckLake has removed."""


def merge_files(server: LakeServer) -> int:
    """Merge small adjacent files of the table; return how many were merged. Rows and snapshots stay.

    Not of a partitioned table: duckdb merges files with partitions outside of the data path only once.
    """
    with server.attached("Nothing was merged") as lake:
        if lake is None:
            return 0
        lake.begin()
        table = load_if_there(lake, server.address)
        if table is None or table.partition_by:
            return 0
        merged = lake.rows(
            f"SELECT files_processed FROM ducklake_merge_adjacent_files({literal(lake.name)}, "
            f"{literal(server.address.table)}, schema => {literal(server.address.schema)})"
        )
        error = connection.commit(lake)
        if error is not None:
            raise server.failed(error, "Nothing was merged")
    return sum(int(count) for (count,) in merged)


def delete_removed_files(server: LakeServer) -> int:
    """Delete files that the DuckLake no longer lists, of all its tables; return how many."""
    with server.attached("It is unknown which removed files were deleted") as lake:
        if lake is None:
            return 0
        older_than = f"now()::TIMESTAMP - INTERVAL '{RETENTION_DAYS} days'"
        deleted = lake.rows(
            f"CALL ducklake_cleanup_old_files({literal(lake.name)}, older_than => {older_than})"
        )
    return len(deleted)
