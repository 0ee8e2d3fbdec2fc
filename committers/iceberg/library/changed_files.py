"""pyiceberg's snapshot producer, for snapshots that remove known files and add data and delete files.

pyiceberg writes no delete files, and its own producers find the files to remove by predicates on partitions
and bounds. Here the files and their manifests are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import (
    Operation,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _SnapshotProducer
from pyiceberg.utils.properties import property_as_bool, property_as_int

from ...file_tables.library_hooks import check_hooks, check_members, hook
from .snapshots import Live, UncopiedTransaction

check_members(
    _SnapshotProducer,
    (
        "_added_data_files",
        "_compression",
        "_deleted_data_files",
        "_parent_snapshot_id",
        "_snapshot_id",
        "_transaction",
        "new_manifest_output",
    ),
)
check_members(ManifestWriterV2, ("_meta",))
check_members(_ManifestMergeManager, ("merge_manifests",))


class DeleteManifestWriter(ManifestWriterV2):
    """Writes a manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class ChangeFiles(_SnapshotProducer["ChangeFiles"]):
    """Adds and removes files, in one snapshot.

    Args:
        operation: of the snapshot
        live: all files of the branch's head
        removed: locations of the data and delete files to remove
    """

    def __init__(
        self,
        operation: Operation,
        transaction: UncopiedTransaction,
        table: Table,
        branch: str,
        live: Live,
        removed: Collection[str],
        summary: Mapping[str, str],
    ) -> None:
        # the library adds up totals for these operations only
        counted = Operation.OVERWRITE if operation is Operation.REPLACE else operation
        super().__init__(counted, transaction, table.io, None, dict(summary), branch)
        self._named_operation = operation
        self._live = live
        self._removed = removed
        self._added_delete_files: list[DataFile] = []
        self._deleted_data_files.update(
            entry.data_file for _, entries in live for entry in entries if self._is_removed(entry)
        )

    def append_deletes(self, file: DataFile) -> None:
        """
        Args:
            file: its `spec_id` is set, and may be that of an older partition spec
        """
        self._added_delete_files.append(file)

    def _is_removed(self, entry: ManifestEntry) -> bool:
        return entry.data_file.file_path in self._removed

    def _removed_entries(self, content: ManifestContent) -> Iterator[ManifestEntry]:
        for manifest, entries in self._live:
            if manifest.content == content:
                for entry in entries:
                    if self._is_removed(entry):
                        yield _with_status(entry, ManifestEntryStatus.DELETED, self._snapshot_id)

    @hook
    def _build_delete_files_partition_predicate(self) -> None:
        """No search is needed."""

    @hook
    def _deleted_entries(self) -> list[ManifestEntry]:
        return list(self._removed_entries(ManifestContent.DATA))

    @hook
    def _existing_manifests(self) -> list[ManifestFile]:
        return [kept for manifest, entries in self._live for kept in self._kept(manifest, entries)]

    def _kept(self, manifest: ManifestFile, entries: list[ManifestEntry]) -> Iterator[ManifestFile]:
        """Return the manifest unchanged, or a new one without the removed files, or None if nothing is
        left.
        """
        stay = [entry for entry in entries if not self._is_removed(entry)]
        if len(stay) == len(entries):
            yield manifest
        elif stay:
            spec = self.spec(manifest.partition_spec_id)
            is_delete = manifest.content == ManifestContent.DELETES
            with (
                self.new_delete_manifest_writer(spec)
                if is_delete
                else self.new_manifest_writer(spec) as writer
            ):
                for entry in stay:
                    writer.add_entry(_with_status(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id))
            yield writer.to_manifest_file()

    @hook
    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Add the manifests of delete files, which the library does not write."""
        return [*self._delete_manifests(), *manifests]

    def _delete_manifests(self) -> Iterator[ManifestFile]:
        """One for each partition spec of added or removed delete files."""
        entries: dict[int, list[ManifestEntry]] = defaultdict(list)
        for file in self._added_delete_files:
            entries[file.spec_id].append(_added(file, self._snapshot_id))
        for entry in self._removed_entries(ManifestContent.DELETES):
            entries[entry.data_file.spec_id].append(entry)
        for spec_id, some in entries.items():
            with self.new_delete_manifest_writer(self.spec(spec_id)) as writer:
                for entry in some:
                    writer.add_entry(entry)
            yield writer.to_manifest_file()

    def new_delete_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        output = self.new_manifest_output()
        return DeleteManifestWriter(spec, self.schema(), output, self._snapshot_id, self._compression)

    @hook
    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        """The library's own leaves out delete files, and takes all added files for those of one spec."""
        metadata = self._transaction.table_metadata
        specs, schema = metadata.specs(), metadata.schema()
        partitions_max = property_as_int(
            metadata.properties,
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT,
            TableProperties.WRITE_PARTITION_SUMMARY_LIMIT_DEFAULT,
        )
        collected = SnapshotSummaryCollector(partitions_max or 0)
        for file in (*self._added_data_files, *self._added_delete_files):
            collected.add_file(file, schema, specs[file.spec_id])
        for file in self._deleted_data_files:
            collected.remove_file(file, schema, specs[file.spec_id])
        parent = self._parent_snapshot_id
        previous = None if parent is None else metadata.snapshot_by_id(parent)
        summary = update_snapshot_summaries(
            Summary(self._operation, **collected.build(), **(snapshot_properties or {})),
            None if previous is None else previous.summary,
        )
        return Summary(self._named_operation, **summary.additional_properties)


class MergingChangeFiles(ChangeFiles):
    """Merges small manifests too, as the library's `merge_append` does, those of delete files apart."""

    @hook
    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        deletes, data = list(self._delete_manifests()), list[ManifestFile]()
        for manifest in manifests:
            (deletes if manifest.content == ManifestContent.DELETES else data).append(manifest)
        return [*self._merged(data, self), *self._merged(deletes, _DeleteManifests(self))]

    def _merged(self, manifests: list[ManifestFile], producer: Any) -> Sequence[ManifestFile]:
        properties = self._transaction.table_metadata.properties
        size, count = (
            property_as_int(properties, name, default) or default
            for name, default in (
                (
                    TableProperties.MANIFEST_TARGET_SIZE_BYTES,
                    TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
                ),
                (TableProperties.MANIFEST_MIN_MERGE_COUNT, TableProperties.MANIFEST_MIN_MERGE_COUNT_DEFAULT),
            )
        )
        is_on = property_as_bool(
            properties,
            TableProperties.MANIFEST_MERGE_ENABLED,
            TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT,
        )
        return _ManifestMergeManager(size, count, is_on, producer).merge_manifests(manifests)


class _DeleteManifests:
    """What the library's merge needs of a producer, for manifests of delete files."""

    def __init__(self, producer: ChangeFiles) -> None:
        self.snapshot_id = producer.snapshot_id
        self.spec = producer.spec
        self.fetch_manifest_entry = producer.fetch_manifest_entry
        self.new_manifest_writer = producer.new_delete_manifest_writer


class ReplaceFiles(ChangeFiles):
    """Removes the source files and adds the new ones, in one `replace` snapshot."""

    def __init__(
        self,
        transaction: UncopiedTransaction,
        table: Table,
        branch: str,
        live: Live,
        sources: set[str],
        deletes: Iterable[str] = (),
    ) -> None:
        """
        Args:
            sources: locations of data files
            deletes: locations of the delete files that only the sources need
        """
        summary = {"penstock.compacted-files": str(len(sources))}
        removed = sources.union(deletes)
        super().__init__(Operation.REPLACE, transaction, table, branch, live, removed, summary)


check_hooks(ChangeFiles)
check_hooks(MergingChangeFiles)


def _added(file: DataFile, snapshot_id: int) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot_id,
        sequence_number=None,
        file_sequence_number=None,
        data_file=file,
    )


def _with_status(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )
