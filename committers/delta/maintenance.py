"""Maintenance of a Delta table beside its commits: the log, and files that are no longer part of the table.

Neither makes a commit, so neither gets into the way of a stream.
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
from .checks import check_supported
from .files import delta_files
from .history import open_log
from .intervals import FILES, library_keeps_log, retention, warn_kept
from .library import in_short
from .table import load, load_if_there

MAINTENANCE_PROPERTY = "penstock.maintenance"
"""`true` in tables that Penstock created."""

COMMITS_PER_CHECKPOINT = 10
"""A log checkpoint of fewer costs more than it saves."""

_LOG_CLEANUP_PROPERTY = "delta.enableExpiredLogCleanup"
_FILES_PER_CHECK = 1000
_LAST_CHECKPOINT = "_delta_log/_last_checkpoint"


def is_maintained(table_uri: str, storage_options: Mapping[str, str]) -> bool:
    """Did Penstock create the table, and does nobody mind?

    Raises:
        RetryableError: it cannot be read now.
    """
    table = load_if_there(table_uri, storage_options)
    return table is not None and _flag(table, MAINTENANCE_PROPERTY, default=False)


def _flag(table: DeltaTable, name: str, *, default: bool) -> bool:
    return table.metadata().configuration.get(name, str(default)).strip().lower() == "true"


# The log ------------------------------------------------------------------------------------------


def checkpoint_log(table_uri: str, storage_options: Mapping[str, str]) -> int | None:
    """Write a log checkpoint if there is none of the last commits, and drop what the log keeps no longer.

    How long it keeps what is the table's own affair (`delta.logRetentionDuration`, 30 days).

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
    check_supported(table, overwrite=False)
    write_log_checkpoint(table)
    return table.version()


def write_log_checkpoint(table: DeltaTable) -> None:
    """Of the handle's version, and drop what the log keeps no longer.

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
            "commit is affected; it is tried again."
        ) from error


def _last_checkpoint(table_uri: str, storage_options: Mapping[str, str]) -> int:
    """-1 without one, or if nobody can tell: then one more does no harm."""
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
) -> int:
    """Delete files that were removed from the table longer ago than its retention; the number deleted.

    Only files that the log says were removed: what it has never named may be waiting for its commit. The
    library tells which these are, but a log checkpoint leaves out what was removed longer ago than the
    retention, and then it no longer knows. So it is also asked about the version that the table had a
    retention ago: all that was removed by then can go now, unless it has come back since. They are deleted
    here, for the library's own vacuum makes two commits.

    Args:
        protected: base names of files that manifests name which are not in the table yet; asked right before
            each deletion

    Raises:
        RetryableError: the table cannot be read now.
        TableNotSupportedError: nobody can tell here what the table needs.
    """
    table = load_if_there(table_uri, storage_options)
    if table is None:
        return 0
    check_supported(table, overwrite=False)
    configuration = table.metadata().configuration
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
    """Paths, unencoded."""
    try:
        past = DeltaTable(table.table_uri, storage_options=dict(storage_options))
        past.load_as_version(now - kept_for)
        return sorted({*_removed(past, kept_for), *_removed(table, kept_for)})
    except Exception as error:
        raise RetryableError(
            f"The Delta table {table.table_uri} could not be vacuumed: {in_short(error)}. Nothing was "
            "deleted; it is tried again."
        ) from error


def _removed(table: DeltaTable, longer_ago_than: timedelta) -> list[str]:
    """By the view of the log that this handle has. Looks only."""
    hours = math.ceil(longer_ago_than / timedelta(hours=1))
    return table.vacuum(dry_run=True, retention_hours=hours, enforce_retention_duration=False)


def _needed(table: DeltaTable) -> Iterator[str]:
    """Base names of the files of the newest version, and of those that were removed only lately."""
    for uri in table.file_uris():
        name = posixpath.basename(uri)
        yield from (name, unquote(name))
    kept_for = retention(table.metadata().configuration, FILES)
    removed_long_ago = set() if kept_for is None else set(_removed(table, kept_for))
    for path in _removed(table, timedelta()):
        if path not in removed_long_ago:
            yield posixpath.basename(path)
