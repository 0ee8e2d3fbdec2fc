"""The Iceberg table committer: one snapshot of an Iceberg table per batch, with the batch's token in its
commit.

Each attempt loads the table from the catalog anew, looks for the token there, builds a snapshot on top of
that very metadata and sends it once. The catalog takes it only if the branch's head is still the one looked
at, and every batch moves the head; so a twin that was faster makes the attempt fail, and the next one sees
its token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from .. import crash_points
from ..contract import (
    AlreadyCommitted,
    Batch,
    CheckToken,
    Committed,
    Conflict,
    DataFiles,
    Manifest,
    Outcome,
    Token,
)
from ..deliveries.contract import check_none_committed
from ..error_causes import retryable
from ..errors import (
    NEXT_TRY,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from ..failed_commit import failed_batch
from ..file_tables.manifest import LakeManifest, decode
from ..token_check import other_offsets
from .address import IcebergAddress
from .branch import ensure_branch
from .catalog import CatalogConfig, io_properties, known_properties, redacted
from .checks import check_supported
from .deletion_guard import check_location, is_own_location, table_deletion_guard
from .file_schema_check import check_files_fit
from .files import iceberg_files
from .new_table import NewIcebergTable, check_layout, open_or_create
from .plan import data_location, plan_target, target_of_files
from .snapshot import Attempt, accept_head, prepare_attempt
from .table import (
    CommittedBatch,
    check_not_rolled_back,
    check_same_table,
    committed_batch,
    digest_of,
    load,
    load_if_there,
    recorded_origin,
    version_of,
)
from .target import KIND, NO_SNAPSHOT, IcebergTableLayout


class IcebergTableCommitter:
    """Commits manifests to one branch of one Iceberg table. Runs on the driver and in the delivery process.

    A batch lands at most once per (query, batch id), whoever else commits to the table meanwhile. Data files
    are not opened, and whether they are there is for the caller to ask (`missing`).

    Args:
        catalog: how to open the catalog
        address: the table in it, and the branch
    """

    def __init__(self, catalog: CatalogConfig, address: IcebergAddress) -> None:
        self._catalog = catalog
        self._address = address
        self._cached_table: Table | None = None

    # Before the write -----------------------------------------------------------------------------

    def plan(
        self,
        source: pa.Schema,
        new: NewIcebergTable,
        *,
        evolve: bool = False,
        overwrite: bool = False,
        batch_id: int = 0,
    ) -> IcebergTableLayout:
        """What a batch with these columns is written into; creates the table and the branch if not there.

        Called on the driver before any data moves. Adds no column yet: the commit does.

        Args:
            new: how to create the table; a partitioning or sort order that it asks for must be the table's
            evolve: may the batch add nullable columns?
            overwrite: will the batch replace all rows?

        Raises:
            ConfigurationError: no table and it may not be created; or it is partitioned or sorted otherwise.
            SchemaMismatchError: shows both schemas.
            TableNotSupportedError: names what direct commits would violate.
            RetryableError: the table cannot be read now.
        """
        table, created = self._load_table(), False
        if table is None:
            table, created = open_or_create(self._catalog, self._address, source, new, batch_id)
        check_supported(table, overwrite)
        check_layout(table, self._address, new)
        self._cached_table = ensure_branch(table, self._address)
        return plan_target(self._cached_table, source, self._address.branch, evolve=evolve, created=created)

    def target_of(self, content: LakeManifest) -> IcebergTableLayout | None:
        """What files like these are written into, as the table is now; None if it takes none of them.

        Why it takes none is for `commit` to say.

        Raises:
            ConfigurationError: a property of the table has a value that cannot be followed.
            RetryableError: the table cannot be read now.
        """
        self._cached_table = None
        table = self._load_table()
        if table is None or str(table.metadata.table_uuid) != content.table_id:
            return None
        try:
            check_supported(table, overwrite=content.mode == "overwrite")
            return target_of_files(table, content) if is_own_location(table, content.location) else None
        except (SchemaMismatchError, TableNotSupportedError):
            return None

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """Is the table still the one that the query wrote, with all that it delivered?

        Called at the start of each batch.

        Args:
            table_id: the UUID in the store; None if it knows none
            last_version: not needed: the token says which snapshot holds the query's last batch

        Raises:
            TableChangedError: dropped, re-created, or rolled back to before the stream's last batch.
        """
        table = self._load_table()
        if table is None:
            if table_id is not None:
                load(self._catalog, self._address)
            return
        check_same_table(table, self._address, table_id)
        self._committed_batch(table.metadata, query_id)

    def accept(self, query_id: str) -> None:
        """Note the branch's head as the snapshot of the query's last batch, after a rollback that shall stay.

        Raises:
            RetryableError: another writer was faster, or the catalog cannot be reached.
        """
        table = load(self._catalog, self._address)
        committed = committed_batch(table.metadata, query_id, self._address.branch)
        if committed is None:
            return
        try:
            accept_head(table, query_id, self._address.branch, committed)
        except Exception as error:  # noqa: BLE001  the drivers of many catalogs raise what they like
            raise RetryableError(
                f"The Iceberg table {self._address.uri} could not be accepted as it is: "
                f"{self._in_short(error)}. "
                "Nothing was changed; try again."
            ) from None

    def token(self, query_id: str) -> Token | None:
        """The last batch of the query that the table holds; None if there is no table.

        Raises:
            TableChangedError: the branch was rolled back to before it.
        """
        table = self._load_table()
        committed = None if table is None else self._committed_batch(table.metadata, query_id)
        return None if committed is None else committed.token

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """The first of the origins from which another query has committed to the branch; None if none has.

        Raises:
            RetryableError: the table cannot be read now.
        """
        table = self._load_table()
        if table is None:
            return None
        return recorded_origin(table.metadata, query_id, self._address.branch, origins)

    def has_rows(self) -> bool:
        """False if the branch's head names no data file.

        Raises:
            RetryableError: the table cannot be read now.
        """
        table = self._load_table()
        head = None if table is None else table.metadata.snapshot_by_name(self._address.branch)
        if head is None:
            return False
        return head.summary is None or head.summary.additional_properties.get("total-data-files") != "0"

    def _load_table(self) -> Table | None:
        if self._cached_table is None:
            self._cached_table = load_if_there(self._catalog, self._address)
        return self._cached_table

    def _committed_batch(self, metadata: TableMetadata, query_id: str) -> CommittedBatch | None:
        committed = committed_batch(metadata, query_id, self._address.branch)
        check_not_rolled_back(metadata, self._address, committed)
        return committed

    # Commit ---------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """Add all files of the manifest and its token in one snapshot, if the token is not there yet.

        Idempotent. A batch behind the table's token counts as committed: the batches of a query land in
        order. Whether the earlier one had the same offsets is for the store to know.

        Args:
            check_token: asked about the token that the batch comes behind; what it raises ends the attempt

        Raises:
            SchemaMismatchError, TableNotSupportedError: the table can no longer take these files; the batch
                did not land.
            TableChangedError: dropped, re-created, or rolled back to before what the stream delivered.
            CheckpointMismatchError: the table holds the batch id with other offsets.
            FencedError: the table holds some of the merged batches already, not all.
            RetryableError: catalog or storage cannot be reached; the batch did not land.
            CommitStateUnknownError: the batch may have landed. Delete nothing.
        """
        self._cached_table = None
        content = decode(manifest, KIND)
        table = load(self._catalog, self._address, content.table_id)
        committed = self._committed_batch(table.metadata, manifest.batch.stream.query_id)
        if committed is not None:
            check_none_committed(manifest, committed.token, self._address.uri)
            if self._is_in(table.metadata, committed, manifest.batch):
                return AlreadyCommitted(committed.snapshot_id if committed.holds(manifest.batch) else None)
        check_token(None if committed is None else committed.token)
        return self._commit_once(self._prepare(table, manifest, content), manifest, content)

    def _is_in(self, metadata: TableMetadata, committed: CommittedBatch, batch: Batch) -> bool:
        if committed.batch_id < batch.batch_id:
            return False
        digest = digest_of(metadata, self._address.branch, committed, batch)
        if digest is not None and not batch.digest.startswith(digest):
            raise other_offsets(batch, f"Iceberg table {self._address.uri}")
        return True

    def _prepare(self, table: Table, manifest: Manifest, content: LakeManifest) -> Attempt:
        batch, branch = manifest.batch, self._address.branch
        check_supported(table, overwrite=content.mode == "overwrite")
        if branch not in table.metadata.refs and content.table_version != NO_SNAPSHOT:
            raise TableChangedError(
                f"The branch {branch!r} of the Iceberg table {self._address.uri} was dropped while batch "
                f"{batch.batch_id} of query {batch.stream.query_id} was written. The batch did not land. "
                "Create the branch again; or start a coupled query again, which creates it anew from the "
                "main branch."
            )
        check_location(table, manifest, content)
        missing_columns = check_files_fit(table.metadata, content)
        try:
            return prepare_attempt(table, manifest, content, branch, missing_columns)
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001  nothing was sent to the catalog yet
            raise retryable(error)(
                f"The manifests of batch {batch.batch_id} of query {batch.stream.query_id} could not be "
                f"written for the Iceberg table {self._address.uri}: {self._in_short(error)}. The batch did "
                f"not land. Check that the storage can be written. {NEXT_TRY}"
            ) from None

    def _commit_once(self, attempt: Attempt, manifest: Manifest, content: LakeManifest) -> Outcome:
        batch = manifest.batch
        crash_points.reach("commit.start", batch.batch_id)
        try:
            attempt.send()
        except Exception as error:  # noqa: BLE001  whatever it is, the table says whether the batch landed
            return self._outcome_after(error, attempt, batch, content)
        crash_points.reach("commit.landed", batch.batch_id)
        return Committed(attempt.snapshot_id)

    def _outcome_after(
        self, error: Exception, attempt: Attempt, batch: Batch, content: LakeManifest
    ) -> Outcome:
        """What an error of the commit request means."""
        failed = failed_batch(
            batch,
            f"the Iceberg table {self._address.uri}",
            self._in_short(error),
            can_commit_later=not self._catalog.is_embedded,
        )
        with failed.reading_table():
            found = self._outcome_in_table(error, attempt, batch, content)
        if found is None:
            raise attempt.give_up(failed) from None
        return found

    def _outcome_in_table(
        self, error: Exception, attempt: Attempt, batch: Batch, content: LakeManifest
    ) -> Committed | Conflict | None:
        table = load(self._catalog, self._address, content.table_id)
        committed = self._committed_batch(table.metadata, batch.stream.query_id)
        if committed is not None and self._is_in(table.metadata, committed, batch):
            crash_points.reach("commit.landed", batch.batch_id)
            return Committed(committed.snapshot_id)
        if isinstance(error, CommitFailedException):
            attempt.discard()
            return Conflict(f"another writer changed {self._address.uri} meanwhile: {self._in_short(error)}")
        if self._head(table) != self._head(attempt.table):
            return Conflict(
                f"another writer moved the branch {self._address.branch!r} of {self._address.uri}"
            )
        return None

    def _head(self, table: Table) -> int:
        return version_of(table.metadata, self._address.branch)

    def _in_short(self, error: Exception) -> str:
        return redacted(error, known_properties(self._catalog))

    # Files ----------------------------------------------------------------------------------------

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """Files that the manifest names and that are gone; all of them if there is no table.

        Raises:
            RetryableError: catalog or storage cannot be asked now.
        """
        content = decode(manifest, KIND)
        paths = [file.path for file in content.files]
        table = self._load_table()
        if table is None:
            return paths
        check_location(table, manifest, content)
        return iceberg_files(content.location, self._io(table)).missing(paths)

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        """Delete uncommitted data files; the number deleted. Files already gone are no error."""
        return self.delete_files(file.path for files in payloads for file in files)

    def delete_files(self, paths: Iterable[str]) -> int:
        """Delete uncommitted data files; the number deleted. Files already gone are no error."""
        table = self._load_table()
        if table is None:
            return 0
        return iceberg_files(data_location(table), self._io(table), table_deletion_guard(table)).delete(paths)

    def _io(self, table: Table) -> Mapping[str, str]:
        return io_properties(table)
