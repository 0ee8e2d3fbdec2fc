"""Deletes files that the metadata of an Iceberg table no longer needs."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.io import FileIO
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.properties import property_as_bool

from .deletion_guard import table_deletion_guard
from .file_io import TableFileIO

DELETING_THREADS = 8


def delete_old_metadata(table: Table, new: TableMetadata) -> None:
    """Delete metadata files that dropped out of the metadata log after `table`; asynchronously for object
    stores.

    Used for commits that bypass pyiceberg's own commit, which does this. Does nothing unless the table has
    `write.metadata.delete-after-commit.enabled`.
    """
    is_enabled = property_as_bool(
        new.properties,
        TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED,
        TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED_DEFAULT,
    )
    if not is_enabled:
        return
    kept = {entry.metadata_file for entry in new.metadata_log}
    log = table.metadata.metadata_log
    removed = table_deletion_guard(table).allowed(
        entry.metadata_file for entry in log if entry.metadata_file not in kept
    )
    if isinstance(table.io, TableFileIO):
        table.io.delete_soon(removed)
    else:
        delete_files(table.io, removed)


def delete_files(io: FileIO, paths: Sequence[str]) -> int:
    """Delete files; return the number deleted. Missing files are not an error.

    Args:
        paths: accepted by the table's deletion guard, or files that this process has just written
    """

    def delete(path: str) -> bool:
        try:
            io.delete(path)
        except FileNotFoundError:
            return False
        return True

    if not paths:
        return 0
    with ThreadPoolExecutor(DELETING_THREADS) as pool:
        return sum(pool.map(delete, paths))
