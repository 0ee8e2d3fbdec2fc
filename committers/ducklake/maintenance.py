"""Maintenance of a DuckLake table, by DuckLake's own functions. Runs in the delivery process."""

from __future__ import annotations

from . import connection
from .connection import LakeServer, literal
from .table import load_if_there

RETENTION_DAYS = 7
"""How long readers of older snapshots can still open a file that DuckLake has removed."""


DELETED_MAX = 0.2
"""The part of a file that may be deleted before it is written again without these rows."""


def merge_files(server: LakeServer) -> int:
    """Write files with many deleted rows again, and merge small adjacent files of the table; return how many
    were read. Rows and snapshots stay.

    Not of a partitioned table: duckdb merges files with partitions outside of the data path only once.
    """
    with server.attached("Nothing was merged") as lake:
        if lake is None:
            return 0
        lake.begin()
        table = load_if_there(lake, server.address)
        if table is None or table.partition_by:
            return 0
        where = (
            f"{literal(lake.name)}, {literal(server.address.table)}, "
            f"schema => {literal(server.address.schema)}"
        )
        rewrite = f"ducklake_rewrite_data_files({where}, delete_threshold => {DELETED_MAX})"
        merged = lake.rows(f"SELECT files_processed FROM {rewrite}")
        merged += lake.rows(f"SELECT files_processed FROM ducklake_merge_adjacent_files({where})")
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
