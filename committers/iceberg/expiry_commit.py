"""What the commit that expires snapshots sends to the catalog, and what the catalog has lost by it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)

from .table import snapshots_by_id


class _AssertAsPlanned(ValidatableTableRequirement):
    """Requires that the snapshots exist and that no branch or tag was added, moved or changed.

    Removing a snapshot removes its branches and tags too, and none of Iceberg's own requirements protects a
    tag that was set in the meantime. So a catalog that runs in this process checks this as well; a server
    would not know this requirement.
    """

    type: Literal["assert-as-planned"] = "assert-as-planned"
    refs: dict[str, SnapshotRef]
    snapshot_ids: frozenset[int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None or base_metadata.refs != self.refs:
            raise CommitFailedException("Requirement failed: branches or tags have changed")
        if not self.snapshot_ids.issubset(snapshots_by_id(base_metadata)):
            raise CommitFailedException("Requirement failed: the snapshots are already expired")


def checks_refs(catalog: Catalog) -> bool:
    """Return True if the catalog checks requirements in this process, so that it can check
    `_AssertAsPlanned`.
    """
    return isinstance(catalog, MetastoreCatalog)


def lost_refs(table: Table, expired: TableMetadata, snapshot_ids: frozenset[int]) -> tuple[list[str], str]:
    """Branches and tags that were set on an expired snapshot right before the commit, and where they can be
    found.

    A server removes them with the snapshot. The last metadata file with the snapshots still has them.

    Args:
        expired: metadata after the commit
        snapshot_ids: of the expired snapshots

    Raises:
        FileNotFoundError: no metadata file of the table has the snapshots any more.
    """
    if checks_refs(table.catalog) or not expired.metadata_log:
        return [], ""
    for entry in reversed(expired.metadata_log):
        before = entry.metadata_file
        if before == table.metadata_location:
            return [], before
        metadata = FromInputFile.table_metadata(table.io.new_input(before))
        if not snapshot_ids.isdisjoint(snapshots_by_id(metadata)):
            lost = [name for name, ref in metadata.refs.items() if ref.snapshot_id in snapshot_ids]
            return sorted(map(repr, lost)), before
    raise FileNotFoundError("no metadata file of the table has the snapshots any more")


def requirements_of(table: Table, expiring: Sequence[Snapshot]) -> tuple[TableRequirement, ...]:
    refs = table.metadata.refs
    requirements: list[TableRequirement] = [AssertTableUUID(uuid=table.metadata.table_uuid)]
    requirements += [
        AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id)  # type: ignore[call-arg]
        for name, ref in refs.items()
    ]
    if checks_refs(table.catalog):
        snapshot_ids = frozenset([snapshot.snapshot_id for snapshot in expiring])
        requirements.append(_AssertAsPlanned(refs=refs, snapshot_ids=snapshot_ids))  # type: ignore[arg-type]
    return tuple(requirements)


def updates_of(metadata: TableMetadata, expiring: Sequence[Snapshot]) -> tuple[TableUpdate, ...]:
    """Statistics of partitions are removed explicitly: pyiceberg removes the others with the snapshot."""
    snapshot_ids = [snapshot.snapshot_id for snapshot in expiring]
    with_statistics = {file.snapshot_id for file in metadata.partition_statistics}.intersection(snapshot_ids)
    statistics = [
        RemovePartitionStatisticsUpdate(snapshot_id=one)  # type: ignore[call-arg]
        for one in sorted(with_statistics)
    ]
    return (*statistics, RemoveSnapshotsUpdate(snapshot_ids=snapshot_ids))  # type: ignore[call-arg]
