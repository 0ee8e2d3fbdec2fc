"""The Iceberg table committer: one snapshot per batch, with the batch's token in the same commit.

Each attempt loads the table from the catalog, looks for the token, builds a snapshot on top of that metadata
and sends it once. The catalog accepts it only if the branch's head has not moved. Every batch moves the head,
so if a concurrent driver was faster the attempt fails, and the next attempt sees its token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from .. import crash_points
from ..changes.file_search import SearchesFiles
from ..changes.history import check_history
from ..changes.rewriting import OpenTableRows, RewriteFiles
from ..changes.ties import check_ties
from ..contract import (
    AlreadyCommitted,
    Batch,
    Changes,
    Committed,
    Conflict,
    DataFiles,
    Manifest,
    Mode,
    Outcome,
    Token,
)
from ..error_causes import retryable
from ..errors import (
    NEXT_TRY,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
    TableNotSupportedError,
)
from ..file_tables.evolution import NO_EVOLUTION, Evolution, Narrowing
from ..file_tables.files import MissingFileError, TableFiles
from ..file_tables.manifest import LakeManifest, decode
from ..protocol.failed_commit import failed_batch
from ..protocol.token_check import EarlierDigest, has_batch, is_committed
from ..target import CheckToken
from .address import IcebergAddress
from .branch import ensure_branch
from .catalog import CatalogConfig, in_short, io_properties
from .changes import IcebergChanges, NameDeletes, for_changes
from .checks import check_no_equality_deletes, check_supported
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
    earlier_digest,
    load,
    load_if_there,
    recorded_origin,
    version_of,
)
from .target import KIND, NO_SNAPSHOT, IcebergTableLayout


class IcebergTableCommitter(SearchesFiles):
    """Commits manifests to one branch of one Iceberg table. Runs on the driver and in the delivery
    process.

    A batch is committed at most once per (query, batch id), even if other writers commit at the same time.
    Data files are not opened. The caller checks that they exist (`missing`).

    Args:
        catalog: how to open the catalog
        address: the table in it, and the branch
        name_deletes: names the delete files of changes
        rewrite: writes files without masked rows, which some changes need
        open_rows: reads and writes rows that the commit computes
    """

    def __init__(
        self,
        catalog: CatalogConfig,
        address: IcebergAddress,
        name_deletes: NameDeletes | None = None,
        rewrite: RewriteFiles | None = None,
        open_rows: OpenTableRows | None = None,
    ) -> None:
        self._catalog = catalog
        self._address = address
        self._name_deletes = name_deletes
        self._rewrite = rewrite
        self._open_rows = open_rows
        self._changes: IcebergChanges | None = None
        self._name = f"Iceberg table {address.uri}"
        self._cached_table: Table | None = None

    # Before the write -----------------------------------------------------------------------------

    def plan(
        self,
        source: pa.Schema,
        new: NewIcebergTable,
        *,
        evolution: Evolution = NO_EVOLUTION,
        narrows: Narrowing = Narrowing.NONE,
        mode: Mode = "append",
        batch_id: int = 0,
    ) -> IcebergTableLayout:
        """Return the layout for a batch with these columns; create the table and the branch if they do not
        exist.

        Called on the driver before any task starts. The schema is changed by the commit, not here.

        Args:
            new: how to create the table; a requested partitioning or sort order must match an existing table
            evolution: what the batch may change in the schema
            narrows: which of its types may be larger than those of the table; the writer checks each value
            mode: what the batch does with the rows of the table

        Raises:
            ConfigurationError: the table does not exist and may not be created; or its partitioning or sort
                order differs.
            SchemaMismatchError: shows both schemas.
            TableNotSupportedError: names what direct commits would violate.
            RetryableError: the table cannot be read now.
        """
        table, created = self._load_table(), False
        if table is None:
            given = for_changes(new, mode)
            table, created = open_or_create(self._catalog, self._address, source, given, batch_id)
        check_supported(table, mode)
        if isinstance(mode, Changes):
            check_no_equality_deletes(table, self._address.branch)
            if mode.history is not None:
                check_history(mode.history, [column.name for column in table.schema().fields])
        check_layout(table, self._address, new)
        self._cached_table = ensure_branch(table, self._address)
        return plan_target(
            self._cached_table,
            source,
            self._address.branch,
            created=created,
            evolution=evolution.of_batch(source, mode),
            narrows=narrows,
        )

    def target_of(self, content: LakeManifest) -> IcebergTableLayout | None:
        """Return the current layout for files like these; None if the table does not accept them.

        `commit` raises the error that says why. Raises `ConfigurationError` if a property of the table has an
        unsupported value.
        """
        self._cached_table = None
        table = self._load_table()
        if table is None or str(table.metadata.table_uuid) != content.table_id:
            return None
        try:
            check_supported(table, content.mode)
            return target_of_files(table, content) if is_own_location(table, content.location) else None
        except (SchemaMismatchError, TableNotSupportedError):
            return None

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """See `SupportsTableIdentity`. `last_version` is not used: the token has the snapshot of the last
        batch.
        """
        table = self._load_table()
        if table is None:
            if table_id is not None:
                load(self._catalog, self._address)
            return
        check_same_table(table, self._address, table_id)
        self._committed_batch(table.metadata, query_id)

    def accept(self, query_id: str) -> None:
        """Accept a rollback: store the branch's head as the snapshot of the query's last batch.

        Raises:
            RetryableError: another writer was faster, or the catalog cannot be reached.
        """
        table = load(self._catalog, self._address)
        committed = committed_batch(table.metadata, query_id, self._address.branch)
        if committed is None:
            return
        try:
            accept_head(table, query_id, self._address.branch, committed)
        except Exception as error:  # noqa: BLE001  catalog drivers raise errors of any type
            raise RetryableError(
                f"The Iceberg table {self._address.uri} could not be accepted: {self._in_short(error)}. "
                "Nothing was changed. Try again."
            ) from None

    def token(self, query_id: str) -> Token | None:
        """See `Committer`. Raises `TableChangedError` if the branch was rolled back to before it."""
        table = self._load_table()
        committed = None if table is None else self._committed_batch(table.metadata, query_id)
        return None if committed is None else committed.token

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """See `SupportsOrigins`. Only what was committed to the branch counts."""
        table = self._load_table()
        if table is None:
            return None
        return recorded_origin(table.metadata, query_id, self._address.branch, origins)

    def has_rows(self) -> bool:
        """See `SupportsOrigins`. Only the branch's head counts."""
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

    def check_ties(self, batch: Batch, content: LakeManifest) -> None:
        """Check, before the batch is prepared, that each key has one last row. See `ties`."""
        if isinstance(content.mode, Changes) and (table := self._load_table()) is not None:
            files = iceberg_files(content.location, io_properties(table))
            check_ties(batch, content.mode, content.files, files.opened, lambda _: {})

    # Commit ---------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """See `Committer`. All files of the manifest and its token are in one snapshot.

        A batch before the table's token counts as committed, because the batches of a query are committed in
        order. Whether it had the same offsets is checked with the store.

        Raises:
            TableNotSupportedError: the table no longer accepts these files; the batch was not committed.
            TableChangedError: the table was dropped, re-created, or rolled back to a snapshot before a
                delivered batch.
            RetryableError: catalog or storage cannot be reached; the batch was not committed.
        """
        self._cached_table = None
        content = decode(manifest, KIND)
        table = load(self._catalog, self._address, content.table_id)
        committed = self._committed_batch(table.metadata, manifest.batch.stream.query_id)
        earlier = self._earlier_digest(table, manifest.batch)
        if committed is not None and is_committed(manifest, committed.token, self._name, earlier):
            return AlreadyCommitted(committed.snapshot_id if committed.holds(manifest.batch) else None)
        check_token(None if committed is None else committed.token)
        try:
            attempt = self._prepare(table, manifest, content)
        except MissingFileError as error:
            return Conflict(f"another process has committed the batch or removed files meanwhile: {error}")
        return self._commit_once(attempt, manifest, content)

    def _earlier_digest(self, table: Table, batch: Batch) -> EarlierDigest:
        return partial(earlier_digest, table.metadata, self._address.branch, batch)

    def _prepare(self, table: Table, manifest: Manifest, content: LakeManifest) -> Attempt:
        batch, branch = manifest.batch, self._address.branch
        check_supported(table, content.mode)
        if branch not in table.metadata.refs and content.table_version != NO_SNAPSHOT:
            raise TableChangedError(
                f"The branch {branch!r} of the Iceberg table {self._address.uri} was dropped while batch "
                f"{batch.batch_id} of query {batch.stream.query_id} was written. The batch was not "
                "committed. Create the branch again; or start a coupled query again, which re-creates it "
                "from the main branch."
            )
        check_location(table, manifest, content)
        missing_columns = check_files_fit(table.metadata, content)
        try:
            changes = self._changes_of(table, manifest, content)
            return prepare_attempt(table, manifest, content, branch, missing_columns, changes)
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001  nothing was sent to the catalog yet
            raise retryable(error)(
                f"The manifests of batch {batch.batch_id} of query {batch.stream.query_id} could not be "
                f"written for the Iceberg table {self._address.uri}: {self._in_short(error)}. The batch was "
                f"not committed. Check that the storage is writable. {NEXT_TRY}"
            ) from None

    def _changes_of(self, table: Table, manifest: Manifest, content: LakeManifest) -> IcebergChanges | None:
        """The changes of a manifest, the same for all attempts to commit it; None if it has none."""
        if not isinstance(content.mode, Changes):
            return None
        if self._changes is None or self._changes.manifest != manifest:
            self._changes = IcebergChanges(
                manifest,
                content,
                table,
                f"The {self._name}",
                self._name_deletes,
                self._rewrite,
                self._search_files,
                self._open_rows,
            )
        return self._changes

    def _commit_once(self, attempt: Attempt, manifest: Manifest, content: LakeManifest) -> Outcome:
        batch = manifest.batch
        crash_points.reach("commit.start", batch.batch_id)
        try:
            attempt.send()
        except Exception as error:  # noqa: BLE001  the table shows whether the batch was committed
            return self._outcome_after(error, attempt, batch, content)
        crash_points.reach("commit.landed", batch.batch_id)
        self._delete_key_files()
        return Committed(attempt.snapshot_id)

    def _outcome_after(
        self, error: Exception, attempt: Attempt, batch: Batch, content: LakeManifest
    ) -> Outcome:
        """Interpret an error of the commit request."""
        failed = failed_batch(
            batch,
            f"the {self._name}",
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
        earlier = self._earlier_digest(table, batch)
        if committed is not None and has_batch(batch, committed.token, self._name, earlier):
            crash_points.reach("commit.landed", batch.batch_id)
            self._delete_key_files()
            return Committed(committed.snapshot_id)
        if isinstance(error, CommitFailedException):
            attempt.discard()
            return Conflict(f"another writer changed {self._address.uri}: {self._in_short(error)}")
        if self._head(table) != self._head(attempt.table):
            return Conflict(
                f"another writer moved the branch {self._address.branch!r} of {self._address.uri}"
            )
        return None

    def _delete_key_files(self) -> None:
        if self._changes is not None:
            self._changes.clean_up()

    def _head(self, table: Table) -> int:
        return version_of(table.metadata, self._address.branch)

    def _in_short(self, error: Exception) -> str:
        return in_short(error, self._catalog)

    # Files ----------------------------------------------------------------------------------------

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """See `Committer`. Without a table, all files are missing."""
        content = decode(manifest, KIND)
        paths = [file.path for file in content.files]
        table = self._load_table()
        if table is None:
            return paths
        check_location(table, manifest, content)
        missing = iceberg_files(content.location, io_properties(table)).missing(paths)
        if missing:
            self._cached_table = None
        return missing

    def files(self, manifest: Manifest) -> TableFiles | None:
        """Where the manifest's files are; None if there is no table."""
        content, table = decode(manifest, KIND), self._load_table()
        return None if table is None else iceberg_files(content.location, io_properties(table))

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        """See `PayloadCommitter`."""
        return self.delete_files(file.path for files in payloads for file in files)

    def delete_files(self, paths: Iterable[str]) -> int:
        """Delete uncommitted data files; return the number deleted. Missing files are not an error."""
        table = self._load_table()
        if table is None:
            return 0
        return iceberg_files(data_location(table), io_properties(table), table_deletion_guard(table)).delete(
            paths
        )
