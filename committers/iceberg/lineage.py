"""Lineage in the snapshots of an Iceberg table: what its versions have read, without a store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from ..file_tables.merged_batches import MERGED, SOURCES, merged_ids
from ..lineage import TableCommit, of_history
from .table import SUMMARY_BATCH, SUMMARY_QUERY, line_of


def iceberg_commits(
    metadata: TableMetadata, branch: str, snapshot_id: int | None = None
) -> Iterator[TableCommit]:
    """Yield the snapshots of the branch that the table still has, newest first, or only one snapshot of the
    table.
    """
    if snapshot_id is None:
        yield from map(_table_commit, line_of(metadata, branch))
    elif (snapshot := metadata.snapshot_by_id(snapshot_id)) is not None:
        yield _table_commit(snapshot)


def _table_commit(snapshot: Snapshot) -> TableCommit:
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    committed_at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, timezone.utc)
    batch_id = summary.get(SUMMARY_BATCH, "")
    if not batch_id.isdecimal():
        operation = "" if snapshot.summary is None else snapshot.summary.operation.value
        return TableCommit(snapshot.snapshot_id, committed_at, "", operation=operation)
    ids = merged_ids(summary.get(MERGED, "")) or (int(batch_id),)
    read = of_history(summary.get(SOURCES, ""))
    return TableCommit(snapshot.snapshot_id, committed_at, summary.get(SUMMARY_QUERY, ""), ids, read)
