"""What a commit into a table with a primary key looks for in the snapshot on which it is based: the greatest
sequence number, and the number of buckets.

Reading the entries of all files would take longer with each commit. So a snapshot of Penstock has the
greatest number as a property, and only snapshots of others since then are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from ..errors import PenstockError, TableNotSupportedError
from .table import PaimonTable
from .tokens import USER_PREFIX

NEWEST = "penstock.sequence"
"""Property of a snapshot: no row of it has a greater sequence number."""
_SNAPSHOTS_READ_MAX = 100


def newest_sequence(table: PaimonTable, loaded: Any, snapshot_id: int) -> int:
    """Return a number that no row of a snapshot exceeds; -1 if it has no rows.

    Args:
        loaded: the table of pypaimon
        snapshot_id: 0 if there is none

    Raises:
        RetryableError: the snapshots cannot be read now.
    """
    newest = -1
    try:
        for number in range(snapshot_id, max(snapshot_id - _SNAPSHOTS_READ_MAX, 0), -1):
            snapshot = table.snapshot(number)
            if snapshot is None:
                break
            if snapshot.commit_user.startswith(USER_PREFIX) and NEWEST in snapshot.properties:
                with suppress(ValueError):
                    return max(newest, int(snapshot.properties[NEWEST]))
            newest = max(newest, _greatest(_entries(loaded, number, only_new=True)))
        else:
            if snapshot_id <= _SNAPSHOTS_READ_MAX:
                return newest
        return _greatest(_entries(loaded, snapshot_id))
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001  pypaimon raises errors of any type
        raise table.unreadable(error) from None


def check_buckets(table: PaimonTable, loaded: Any, snapshot_id: int) -> None:
    """Check that all files are in as many buckets as the table has now. An option changes the number for new
    partitions only; others have to be written again.

    Raises:
        TableNotSupportedError: a partition has another number of buckets.
        RetryableError: the table cannot be read now.
    """
    try:
        schemas = loaded.schema_manager.list_all()
        if len({schema.options.get("bucket") for schema in schemas}) < 2:
            return
        found = {entry.total_buckets for entry in _entries(loaded, snapshot_id)}
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001  pypaimon raises errors of any type
        raise table.unreadable(error) from None
    if others := sorted(found - {loaded.total_buckets}):
        raise TableNotSupportedError(
            f"The Paimon table {table.place} has bucket={loaded.total_buckets}, and files in {others[0]} "
            "buckets, in which a key has another place. Nothing was written. Rescale the table first: write "
            "these partitions again with INSERT OVERWRITE in Spark or Flink."
        )


def _greatest(entries: Iterable[Any]) -> int:
    return max((entry.file.max_sequence_number for entry in entries if entry.kind == 0), default=-1)


def _entries(loaded: Any, snapshot_id: int, *, only_new: bool = False) -> list[Any]:
    """Return the files of a snapshot.

    Args:
        only_new: those that it has added
    """
    from pypaimon.manifest.manifest_file_manager import ManifestFileManager
    from pypaimon.manifest.manifest_list_manager import ManifestListManager

    if not snapshot_id:
        return []
    snapshots = loaded.snapshot_manager()
    snapshot = snapshots.get_latest_snapshot()  # of the catalog, if there is one
    if snapshot is None or snapshot.id != snapshot_id:
        snapshot = snapshots.get_snapshot_by_id(snapshot_id)
    lists = ManifestListManager(loaded)
    manifests = lists.read_delta(snapshot) if only_new else lists.read_all(snapshot)
    entries: list[Any] = ManifestFileManager(loaded).read_entries_parallel(manifests)
    return entries
