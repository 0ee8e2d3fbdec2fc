"""Maintenance of a Delta table: log checkpoints, and deletion of files that are no longer part of the
table.

Neither makes a commit, so neither conflicts with a stream.
"""

from __future__ import annotations

import json
import math
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from urllib.parse import unquote

from deltalake import DeltaTable

from ..errors import RetryableError
from ..file_tables.shared_files import shared_with
from .checks import check_supported
from .files import delta_files
from .history import open_log
from .intervals import FILES, library_keeps_log, retention, warn_kept
from .library import in_short
from .table import load, load_if_there

MAINTENANCE_PROPERTY = "penstock.maintenance"
"""Set to `true` in tables that Penstock created."""

COMMITS_PER_CHECKPOINT = 10
"""A log checkpoint of fewer commits costs more than it saves."""

_LOG_CLEANUP_PROPERTY = "delta.enableExpiredLogCleanup"
_FILES_PER_CHECK = 1000
_LAST_CHECKPOINT = "_delta_log/_last_checkpoint"


def is_maintained(table_uri: str, storage_options: Mapping[str, str]) -> bool:
    """Return True if Penstock created the table and maintenance is not disabled.

    Raises:
        RetryableError: it cannot be read now.
    """
    table = load_if_there(table_uri, storage_options)
    return table is not None and _flag(table, MAINTENANCE_PROPERTY, default=False)


def _flag(table: DeltaTable, name: str, *, default: bool) -> bool:
    return table.metadata().configuration.get(name, str(default)).strip().lower() == "true"


# The log ------------------------------------------------------------------------------------------


def checkpoint_log(table_uri: str, storage_options: Mapping[str, str]) -> int | None:
    """Write a log checkpoint if enough commits follow the last one, and delete expired log entries.

    Log retention is set by the table (`delta.logRetentionDuration`, default 30 days).

    Returns:
        the version of the new checkpoint; None if there was nothing to do

    Raises:
        RetryableError: the log cannot be read or written now.
    """
    table = load_if_there(table_uri, storage_options)
    if (
        table is None
        or table.version() - _last_checkpoint(table_uri, storage_options) < COMMITS_PER_CHECKPOINT
    ):
        return None
    check_supported(table)
    write_log_checkpoint(table)
    return table.version()


def write_log_checkpoint(table: DeltaTable) -> None:
    """Write a log checkpoint of the handle's version, and delete expired log entries.

    Raises:
        RetryableError: the log cannot be written now.
    """
    try:
        table.create_checkpoint()
        if _flag(table, _LOG_CLEANUP_PROPERTY, default=True) and library_keeps_log(
            table.table_uri, table.metadata().configuration
        ):
            table.cleanup_metadata()
    except Exception as error:
        raise RetryableError(
            f"The log of the Delta table {table.table_uri} could not be checkpointed: {in_short(error)}. No "
            "commit is affected. The next run tries again."
        ) from error


def _last_checkpoint(table_uri: str, storage_options: Mapping[str, str]) -> int:
    """Version of the last checkpoint; -1 if there is none or if it is unknown: an extra checkpoint does no
    harm.
    """
    with suppress(OSError, ValueError, KeyError, TypeError):
        with open_log(table_uri, storage_options).open_input_file(_LAST_CHECKPOINT) as entry:
            return int(json.loads(entry.read())["version"])
    return -1


# Removed files ------------------------------------------------------------------------------------


def vacuum(
    table_uri: str,
    storage_options: Mapping[str, str],
    now: datetime,
    protected: Callable[[], Collection[str]],
    *,
    protects_partner: bool = False,
) -> int:
    """Delete files that were removed from the table longer ago than its retention; return the number
    deleted.

    Only files that the log lists as removed are deleted: a file that was never in the log may be waiting for
    its commit. The library returns the removed files, but a log checkpoint leaves out files removed longer
    ago than the retention. So the library is also asked about the version of one retention ago: all files
    removed by then can be deleted, unless they were added again. They are deleted here because the library's
    own vacuum makes two commits.

    Args:
        protected: returns base names of files in manifests that are not committed yet; called right before
            each deletion
        protects_partner: these include the files that the other table needs, if the tables share files

    Raises:
        RetryableError: the table cannot be read now.
        TableNotSupportedError: the files that the table needs cannot be determined.
    """
    table = load_if_there(table_uri, storage_options)
    if table is None:
        return 0
    check_supported(table)
    configuration = table.metadata().configuration
    if shared_with(configuration) is not None and not protects_partner:  # the other table may still need them
        return 0
    kept_for = retention(configuration, FILES)
    if kept_for is None:
        warn_kept(table_uri, FILES, configuration[FILES])
        return 0
    table_id = str(table.metadata().id)
    removed = [path for path in _removed_long_ago(table, storage_options, now, kept_for) if "://" not in path]
    deleted = 0
    for start in range(0, len(removed), _FILES_PER_CHECK):
        chunk = removed[start : start + _FILES_PER_CHECK]
        kept = {*protected(), *_needed(load(table_uri, storage_options, table_id))}
        deleted += delta_files(table_uri, storage_options).delete(
            [path for path in chunk if posixpath.basename(path) not in kept]
        )
    return deleted


def _removed_long_ago(
    table: DeltaTable, storage_options: Mapping[str, str], now: datetime, kept_for: timedelta
) -> Sequence[str]:
    """Paths, not encoded."""
    try:
        past = DeltaTable(table.table_uri, storage_options=dict(storage_options))
        past.load_as_version(now - kept_for)
        return sorted({*_removed(past, kept_for), *_removed(table, kept_for)})
    except Exception as error:
        raise RetryableError(
            f"The Delta table {table.table_uri} could not be vacuumed: {in_short(error)}. Nothing was "
            "deleted. The next run tries again."
        ) from error


def _removed(table: DeltaTable, longer_ago_than: timedelta) -> list[str]:
    """Uses the handle's version of the log. Read-only."""
    hours = math.ceil(longer_ago_than / timedelta(hours=1))
    return table.vacuum(dry_run=True, retention_hours=hours, enforce_retention_duration=False)


def _needed(table: DeltaTable) -> Iterator[str]:
    """Base names of the files of the newest version, and of those that were removed recently."""
    for uri in table.file_uris():
        name = posixpath.basename(uri)
        yield from (name, unquote(name))
    kept_for = retention(table.metadata().configuration, FILES)
    removed_long_ago = set() if kept_for is None else set(_removed(table, kept_for))
    for path in _removed(table, timedelta()):
        if path not in removed_long_ago:
            yield posixpath.basename(path)
