"""One attempt to commit a batch to an Iceberg table: snapshot and token, sent to the catalog once.

pyiceberg's own commit is not used. On a retry it adds a batch again that a concurrent driver has committed in
the meantime. And if a conflict was caused by its own lost response, it deletes the manifests of the committed
snapshot. Its snapshot producers write the manifests; this module decides what to send and what to delete
afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)

from ..contract import Manifest
from ..errors import PenstockError
from ..file_tables.manifest import LakeManifest
from ..file_tables.merged_batches import history_properties
from ..protocol.failed_commit import FailedCommit
from .changes import FileChanges, IcebergChanges
from .checks import has_double_partitions
from .data_files import iceberg_data_files
from .file_deletion import delete_files, delete_old_metadata
from .library.changed_files import MergingChangeFiles
from .library.snapshots import Producer, UncopiedTransaction, delete_merged, delete_uncommitted, replace_all
from .live_files import LiveFiles, live_files
from .schema_update import change_schema
from .table import (
    CommittedBatch,
    forgettable_tokens,
    token_property,
    token_value,
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """A snapshot whose manifests are written, not committed yet."""

    table: Table
    snapshot_id: int
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    producer: Producer
    discard_files: Callable[[], None] = lambda: None
    """Deletes the data and delete files that only this attempt needs."""

    @classmethod
    def of(
        cls,
        table: Table,
        transaction: UncopiedTransaction,
        producer: Producer,
        *requirements: TableRequirement,
    ) -> Attempt:
        """The attempt with what the producer has written, if the table's layout is still the loaded one."""
        metadata = table.metadata
        unchanged = (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id}),
        )
        required = (*unchanged, *requirements, *transaction.requirements)
        return cls(table, producer.snapshot_id, transaction.updates, required, producer)

    def send(self) -> None:
        """Send one request to the catalog. After an error, only the table shows whether the commit has
        succeeded.
        """
        response = self.table.catalog.commit_table(self.table, self.requirements, self.updates)
        delete_old_metadata(self.table, response.metadata)

    def give_up(self, failed: FailedCommit) -> PenstockError:
        """Return the error to raise after a failed `send` that is not in the table.

        The manifests are deleted if the request can no longer be executed.
        """
        if not failed.can_commit_later:
            self.discard()
        return failed.not_found()

    def discard(self) -> None:
        """Delete the manifests and the attempt's own files. Only call it if the attempt was certainly not
        committed.
        """
        with suppress(Exception):
            delete_uncommitted(self.producer)
        self.discard_files()


def prepare_attempt(
    table: Table,
    manifest: Manifest,
    content: LakeManifest,
    branch: str,
    missing_columns: list[str],
    changes: IcebergChanges | None = None,
) -> Attempt:
    """Write the manifests of a snapshot of the batch on top of the loaded `table`.

    Args:
        missing_columns: columns of the files that the table does not have yet
        changes: of the batch, if it does more than to add or replace rows
    """
    metadata = table.metadata
    _choose_merging(table)
    transaction = UncopiedTransaction(table)
    change_schema(transaction, content, missing_columns)
    # The summary of the snapshot is for display and for `earlier_digest`.
    summary = history_properties(manifest)
    if changes is None:
        producer, added = _producer(transaction, content, branch, summary), content.files
        discard: Callable[[], None] = lambda: None  # noqa: E731
    else:
        live = live_files(table, branch)
        found = changes.file_changes(table, transaction.table_metadata.schema(), live)
        discard, added = partial(changes.discard, found), found.added
        producer = _changing(transaction, table, branch, live, found, summary)
    try:
        for file in iceberg_data_files(
            added,
            content.location,
            metadata.specs()[content.partition_spec_id],
            transaction.table_metadata.schema(),
        ):
            producer.append_data_file(file)
        producer.commit()
        delete_merged(producer, delete_files)
        _set_token(transaction, manifest, content, branch, producer.snapshot_id)
    except BaseException:
        with suppress(Exception):
            delete_uncommitted(producer)
        discard()
        raise
    free = _field_ids_are_free(metadata, missing_columns)
    return replace(Attempt.of(table, transaction, producer, *free), discard_files=discard)


def _changing(
    transaction: UncopiedTransaction,
    table: Table,
    branch: str,
    live: LiveFiles,
    found: FileChanges,
    summary: dict[str, str],
) -> Producer:
    operation = Operation.OVERWRITE if found.added else Operation.DELETE
    if not found.deletes and not found.removed:
        operation = Operation.APPEND  # readers of increments can go on
    producer = MergingChangeFiles(
        operation, transaction, table, branch, live.manifests, found.removed, summary
    )
    for file in found.deletes:
        producer.append_deletes(file)
    return producer


def _choose_merging(table: Table) -> None:
    """Decide whether small manifests are merged. Changes only the copy in memory, not the table's
    properties.

    They are merged by default, as in Iceberg; pyiceberg's default is the opposite. They are never merged if a
    partition value is a double: pyiceberg 0.12 reads those from manifests as floats, and would write them
    back as floats.
    """
    merge = "true"
    if has_double_partitions(table):
        merge = "false"
    elif TableProperties.MANIFEST_MERGE_ENABLED in table.metadata.properties:
        return
    properties = {**table.metadata.properties, TableProperties.MANIFEST_MERGE_ENABLED: merge}
    table.metadata = table.metadata.model_copy(update={"properties": properties})


def _producer(
    transaction: UncopiedTransaction, content: LakeManifest, branch: str, summary: dict[str, str]
) -> Producer:
    update = transaction.update_branch(branch, summary)
    if content.mode == "append":
        return update.merge_append()
    replacing = replace_all(transaction, branch, summary)
    # With no file to remove, it would create no snapshot and drop the batch's files.
    return replacing if replacing.files_affected else update.fast_append()


def _set_token(
    transaction: Transaction, manifest: Manifest, content: LakeManifest, branch: str, snapshot_id: int
) -> None:
    snapshot = transaction.table_metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None, "the producer adds its snapshot to the transaction"
    batch = manifest.batch
    value = token_value(batch.batch_id, batch.digest, snapshot, content.origins)
    transaction.set_properties({token_property(batch.stream.query_id, branch): value})
    forgotten = forgettable_tokens(transaction.table_metadata, snapshot.timestamp_ms)
    if forgotten:
        transaction.remove_properties(*forgotten)


def accept_head(table: Table, query_id: str, branch: str, committed: CommittedBatch) -> None:
    """Store the branch's head as the snapshot of the query's last batch.

    Only used when an operator accepts a rollback: its rows stay removed.
    """
    metadata = table.metadata
    head = metadata.snapshot_by_name(branch)
    if head is None:
        update: TableUpdate = RemovePropertiesUpdate(removals=[token_property(query_id, branch)])
    else:
        value = token_value(committed.batch_id, committed.digest, head, committed.origins)
        update = SetPropertiesUpdate(updates={token_property(query_id, branch): value})
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": branch, "snapshot-id": head and head.snapshot_id}),
    )
    table.catalog.commit_table(table, requirements, (update,))


def _field_ids_are_free(metadata: TableMetadata, missing_columns: list[str]) -> Iterator[TableRequirement]:
    """Return True if the new field ids are free. A column that others add and drop again uses up a field id,
    and leaves the table with its old schema.
    """
    if missing_columns:
        yield AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": metadata.last_column_id})
