"""Decides which snapshots of an Iceberg table may expire.

These are kept: the newest snapshots of the table and of each branch, snapshots of tags, and those within the
retention of a branch (`min-snapshots-to-keep`, `max-snapshot-age-ms`) or of the table for branches without
their own (`history.expire.min-snapshots-to-keep`, `history.expire.max-snapshot-age-ms`). Branches and tags
themselves are never removed.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from .table import line_of


def snapshots_to_expire(metadata: TableMetadata, keep_max: int, now_ms: int) -> list[Snapshot]:
    """Snapshots that can expire, oldest first; none unless they are more than those kept.

    So only one of `keep_max` commits expires snapshots, and a table written by one stream has between
    `keep_max` and twice as many.
    """
    held = _held(metadata, keep_max, now_ms)
    free = [snapshot for snapshot in _oldest_first(metadata) if snapshot.snapshot_id not in held]
    return free if len(free) > keep_max else []


def is_append(snapshot: Snapshot) -> bool:
    """Return True if the snapshot has every file of its parent."""
    return snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND


def _oldest_first(metadata: TableMetadata) -> list[Snapshot]:
    return sorted(metadata.snapshots, key=lambda one: (one.sequence_number or 0, one.timestamp_ms))


def _held(metadata: TableMetadata, keep_max: int, now_ms: int) -> set[int]:
    # Includes snapshots outside of branches: a staged snapshot, or one left by a rollback, may still be
    # needed.
    held = {snapshot.snapshot_id for snapshot in _oldest_first(metadata)[-keep_max:]}
    for name, ref in metadata.refs.items():
        if ref.snapshot_ref_type is SnapshotRefType.TAG:
            held.add(ref.snapshot_id)
        else:
            held.update(_held_by_branch(metadata, name, keep_max, now_ms))
    return held


def _held_by_branch(metadata: TableMetadata, name: str, keep_max: int, now_ms: int) -> Iterator[int]:
    branch, of_table = metadata.refs[name], metadata.properties
    count = branch.min_snapshots_to_keep or int(of_table.get(TableProperties.MIN_SNAPSHOTS_TO_KEEP, 0))
    age_ms = branch.max_snapshot_age_ms or int(of_table.get(TableProperties.MAX_SNAPSHOT_AGE_MS, 0))
    for position, snapshot in enumerate(line_of(metadata, name)):
        is_young = age_ms > 0 and now_ms - snapshot.timestamp_ms < age_ms
        if position < max(keep_max, count) or is_young:
            yield snapshot.snapshot_id
