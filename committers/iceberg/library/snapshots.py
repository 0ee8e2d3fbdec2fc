"""pyiceberg's snapshot producers and transactions, without the library's own commit.

pyiceberg has no public interface that writes the manifests of a snapshot and leaves the commit to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    TableRequirement,
    TableUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)
from pyiceberg.table.update.snapshot import UpdateSnapshot, _DeleteFiles, _SnapshotProducer
from pyiceberg.transforms import UnknownTransform

from ...file_tables.library_hooks import check_members

Producer: TypeAlias = _SnapshotProducer[Any]
"""Writes the manifests of one snapshot and adds the snapshot to a transaction."""

Live = list[tuple[ManifestFile, list[ManifestEntry]]]
"""The manifests of a snapshot, and the files that each adds or keeps."""

Change: TypeAlias = tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]
"""Updates and requirements of one commit, in the catalog's form."""

check_members(Transaction, ("_updates", "_requirements", "_table", "_set_ref_snapshot", "table_metadata"))
check_members(
    _SnapshotProducer,
    ("_clean_all_uncommitted", "_commit", "_io", "_transaction", "_written_manifests"),
)
check_members(UnknownTransform, ("_transform",))


class UncopiedTransaction(Transaction):
    """A transaction that does not copy the metadata. pyiceberg deep-copies it on each access, about 17 times
    per commit, and each copy costs more than the rest of the commit.

    The copies protect callers that modify the result. Penstock does not, and updates create new metadata that
    shares unchanged parts with the old.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._updated: tuple[tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def updates(self) -> tuple[TableUpdate, ...]:
        """Updates to send to the catalog."""
        return self._updates

    @property
    def requirements(self) -> tuple[TableRequirement, ...]:
        return self._requirements

    def update_branch(self, branch: str, summary: dict[str, str]) -> UpdateSnapshot:
        """Same as `update_snapshot`, but without autocommit of the snapshot."""
        return UpdateSnapshot(self, self._table.io, branch, summary)

    @property
    def table_metadata(self) -> TableMetadata:
        if self._updated is None or self._updated[0] is not self._updates:
            metadata, context = self._table.metadata, _TableMetadataUpdateContext()
            for update in self._updates:
                metadata = _apply_table_update(update, metadata, context)
            self._updated = (self._updates, metadata)
        return self._updated[1]


def replace_all(transaction: Transaction, branch: str, summary: dict[str, str]) -> _DeleteFiles:
    """Removes all files of the branch and adds those of the batch, in one snapshot.

    pyiceberg's `overwrite` creates two snapshots, and readers in between would see an empty table.
    """
    producer = _DeleteFiles(
        operation=Operation.OVERWRITE,
        transaction=transaction,
        io=transaction._table.io,
        branch=branch,
        snapshot_properties=summary,
    )
    producer.delete_by_predicate(AlwaysTrue())
    return producer


def delete_uncommitted(producer: Producer) -> None:
    """Delete the manifests and the manifest list that the producer has written."""
    producer._clean_all_uncommitted()


def delete_merged(producer: Producer, delete_files: Callable[[FileIO, Sequence[str]], object]) -> None:
    """Delete manifests that a merge has replaced: merging includes the manifest of the new files, which no
    snapshot lists then.
    """
    if len(producer._written_manifests) < 2:
        return
    transaction = producer._transaction
    snapshot = transaction.table_metadata.snapshot_by_id(producer.snapshot_id)
    assert snapshot is not None, "the producer adds its snapshot to the transaction"
    named = {manifest.manifest_path for manifest in snapshot.manifests(producer._io)}
    delete_files(producer._io, [path for path in producer._written_manifests if path not in named])
    producer._written_manifests = [path for path in producer._written_manifests if path in named]


def start_branch(table: Table, branch: str, snapshot_id: int) -> Change:
    """An update that starts a branch at the snapshot."""
    return table.transaction()._set_ref_snapshot(snapshot_id, branch, SnapshotRefType.BRANCH)


def empty_snapshot(table: Table) -> Change:
    """Create a snapshot without files on the main branch."""
    return table.transaction().update_snapshot().fast_append()._commit()


def transform_name(transform: UnknownTransform[Any, Any]) -> str:
    """The name that the table's metadata has for a transform unknown to pyiceberg."""
    return transform._transform
