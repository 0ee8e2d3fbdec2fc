"""The Delta table committer: one commit of a Delta table per batch, with the batch's token in it.

The token consists of three application transactions (`txn` actions of the Delta protocol) per query:

    penstock:{query_id}           the batch id
    penstock:{query_id}:digest    the first 60 bits of the digest of the batch's source offsets
    penstock:{query_id}:version   the version of the table that the batch made

In addition, for each origin of the query, the number of the last query that has committed from there:

    penstock:checkpoint:{hash of the checkpoint directory}
    penstock:name:{hash of the query's name}

Delta does not use them to deduplicate: a new handle may commit a lower version again. So each attempt loads
the newest version of the table, looks for the token, and commits exactly the next version. If another writer
commits that version first, the attempt fails, and the next attempt sees its changes, including the token of a
concurrent driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa
from deltalake.exceptions import CommitFailedError

from .. import crash_points
from ..changes.file_search import SearchesFiles
from ..changes.history import check_history
from ..changes.rewriting import OpenTableRows, RewriteFiles, WriteChangeData
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
from ..dry_runs import in_dry_run
from ..errors import RetryableError, SchemaMismatchError, TableNotSupportedError
from ..file_tables.clock import now_ms
from ..file_tables.evolution import NO_EVOLUTION, Evolution, Narrowing
from ..file_tables.files import MissingFileError, TableFiles
from ..file_tables.manifest import LakeManifest, decode
from ..file_tables.table_changes import check_not_behind
from ..protocol.failed_commit import failed_batch
from ..protocol.token_check import is_committed
from ..target import CheckToken
from .change_features import allow_vectors, check_reachable, has_vectors, new_table_properties
from .changes import DeltaChanges
from .checks import check_supported
from .commit_writer import CommitWriter
from .file_values import partition_values_in
from .files import delta_files
from .history import CommitInfo, commits_since
from .library import in_short, needs_other_features
from .log_checkpoints import LOG_CHECKPOINTS, LogCheckpoints
from .log_files import is_local
from .plan import NewDeltaTable, check_partitioning, create_table
from .schema import DeltaTableLayout, check_variants, delta_fields, plan_target, target_of_files
from .schema_match import SchemaChanges, check_files_fit
from .schema_update import change_schema, check_library_commits, check_log_reachable
from .snapshot_cache import SNAPSHOT_CACHE, SnapshotCache, TableSnapshot
from .table import (
    KIND,
    check_not_restored,
    check_same_table,
    committed_version,
    dropped,
    earlier_digest,
    recorded_origin,
    token_of,
)


class DeltaTableCommitter(SearchesFiles):
    """Commits manifests to one Delta table. Runs on the driver and in the delivery process, one instance per
    call.

    A batch is committed at most once per (query, batch id), even if other writers commit at the same time.
    Data files are not opened. The caller checks that they exist (`missing`); they are also checked if the
    table was vacuumed since the batch was planned.

    Args:
        table_uri: location of the table, in the Delta library's form
        storage_options: for the Delta library's object store
        snapshot_cache: table snapshots cached in this process
        log_checkpoints, now_ms: see `CommitWriter`
        rewrite: writes files without masked rows, which some changes need
        write_change_data: writes files of the change data feed, for tables that have one
        open_rows: reads and writes rows that the commit computes
    """

    def __init__(
        self,
        table_uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        snapshot_cache: SnapshotCache = SNAPSHOT_CACHE,
        log_checkpoints: LogCheckpoints = LOG_CHECKPOINTS,
        now_ms: Callable[[], int] = now_ms,
        rewrite: RewriteFiles | None = None,
        write_change_data: WriteChangeData | None = None,
        open_rows: OpenTableRows | None = None,
    ) -> None:
        self._uri = table_uri
        self._options = dict(storage_options or {})
        self._name = f"Delta table {table_uri}"
        self._snapshot_cache = snapshot_cache
        self._writer = CommitWriter(table_uri, self._options, snapshot_cache, log_checkpoints, now_ms)
        self._now_ms = now_ms
        self._rewrite = rewrite
        self._write_change_data = write_change_data
        self._open_rows = open_rows
        self._changes: DeltaChanges | None = None
        self._cached_table: TableSnapshot | None = None

    # Before the write -----------------------------------------------------------------------------

    def plan(
        self,
        source: pa.Schema,
        *,
        partition_by: Sequence[str] | None = None,
        create: bool = True,
        properties: Mapping[str, str] | None = None,
        evolution: Evolution = NO_EVOLUTION,
        widens_types: bool = False,
        narrows: Narrowing = Narrowing.NONE,
        mode: Mode = "append",
        batch_id: int = 0,
    ) -> DeltaTableLayout:
        """Return the layout for a batch with these columns; create the table if it does not exist.

        Called on the driver before any task starts. The schema is changed by the commit, not here.

        Args:
            partition_by: the partition columns that the query asks for; None: the table's own
            properties: for a new table, in addition to the defaults
            evolution: what the batch may change in the schema
            widens_types: the table may get Delta's type widening
            narrows: which of its types may be larger than those of the table; the writer checks each value
            mode: what the batch does with the rows of the table

        Raises:
            ConfigurationError: the table does not exist and `create` is False; or its partitioning differs.
            SchemaMismatchError: shows both schemas.
            TableNotSupportedError: names what direct commits would violate.
            RetryableError: the table cannot be read now.
        """
        fields = delta_fields(source, self._uri)
        table, created = self._load_table(), False
        check_variants(fields, table, self._uri)
        if table is None:
            given = {**new_table_properties(mode), **(properties or {})}
            new = NewDeltaTable(create, partition_by or (), given)
            created = create_table(self._uri, self._options, fields, new, batch_id)
            table = self._load_table()
        if table is None:
            raise dropped(self._uri)
        if isinstance(mode, Changes):
            check_reachable(self._uri, self._options)
        table = self._made_ready(table, mode)
        check_supported(table, mode)
        if isinstance(mode, Changes) and mode.history is not None:
            check_history(mode.history, [field.name for field in table.schema().fields])
        check_partitioning(table, partition_by)
        layout = plan_target(
            table,
            fields,
            created=created,
            evolution=evolution.of_batch(source, mode),
            widens_types=widens_types,
            narrows=narrows,
        )
        check_log_reachable(table, layout.altered, self._options)
        return layout

    def _made_ready(self, table: TableSnapshot, mode: Mode) -> TableSnapshot:
        """Allow deletion vectors in the table if the query asks for them."""
        if not isinstance(mode, Changes) or mode.merge != "on-read":
            return table
        if has_vectors(table.metadata().configuration):
            return table
        check_supported(table, mode)
        check_library_commits(table)
        if in_dry_run():
            return table
        allow_vectors(table.handle())
        self._cached_table = None
        changed = self._load_table()
        if changed is None:
            raise dropped(self._uri)
        return changed

    def target_of(self, content: LakeManifest) -> DeltaTableLayout | None:
        """Return the current layout for files like these; None if the table does not accept them.

        `commit` raises the error that says why.
        """
        self._cached_table = None
        table = self._load_table()
        if table is None or str(table.metadata().id) != content.table_id:
            return None
        try:
            check_supported(table, content.mode)
            return target_of_files(table, content)
        except (SchemaMismatchError, TableNotSupportedError):
            return None

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """See `SupportsTableIdentity`. Free of cost unless others have committed since the last batch."""
        table = self._load_table()
        if table is None:
            if table_id is not None:
                raise dropped(self._uri)
            return
        check_same_table(table, table_id)
        known = [v for v in (last_version, committed_version(table, query_id)) if v is not None]
        if known:
            self._check_log_since(table, max(known), max(known))

    def accept(self, query_id: str) -> None:
        """Nothing to do: a RESTORE does not remove tokens, and the verified version is in the store."""

    def _check_log_since(
        self, table: TableSnapshot, version: int, committed: int | None
    ) -> Sequence[CommitInfo]:
        check_not_behind(self._name, table.version(), version)
        commits = commits_since(table, self._options, version)
        check_not_restored(table, self._options, commits, committed)
        return commits

    def token(self, query_id: str) -> Token | None:
        """See `Committer`."""
        table = self._load_table()
        return None if table is None else token_of(table, query_id)

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """See `SupportsOrigins`."""
        table = self._load_table()
        return None if table is None else recorded_origin(table, query_id, origins)

    def has_rows(self) -> bool:
        """See `SupportsOrigins`. The cost grows with the number of files."""
        table = self._load_table()
        return table is not None and bool(table.handle().file_uris())

    def _load_table(self) -> TableSnapshot | None:
        if self._cached_table is None:
            self._cached_table = self._snapshot_cache.load(self._uri, self._options)
        return self._cached_table

    def check_ties(self, batch: Batch, content: LakeManifest) -> None:
        """Check, before the batch is prepared, that each key has one last row. See `ties`."""
        if isinstance(content.mode, Changes):
            files = self._files()
            check_ties(
                batch, content.mode, content.files, files.opened, partial(partition_values_in, content)
            )

    # Commit ---------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """See `Committer`. All files of the manifest and its token are in one table commit.

        A batch before the table's token counts as committed, because the batches of a query are committed in
        order. Whether it had the same offsets is checked with the store.

        Raises:
            TableNotSupportedError: the table no longer accepts these files; the batch was not committed.
            TableChangedError: the table was dropped, re-created, or restored to a version before a delivered
                batch.
            RetryableError: the table cannot be read, or a vacuum has deleted files; the batch was not
                committed.
        """
        self._cached_table = None
        content = decode(manifest, KIND)
        attempt = self._prepare_attempt(manifest, content, check_token)
        if isinstance(attempt, TableSnapshot) and (
            changes := self._schema_changes(attempt, manifest.batch, content)
        ):
            if not change_schema(attempt, self._uri, manifest.batch, content, changes, self._now_ms):
                return Conflict("another writer committed while the table's columns were added or changed")
            attempt = self._prepare_attempt(manifest, content, check_token)
            if isinstance(attempt, TableSnapshot) and self._schema_changes(attempt, manifest.batch, content):
                return Conflict("another writer removed the columns that were just added or changed")
        if not isinstance(attempt, TableSnapshot):
            return attempt
        return self._commit_once(attempt, manifest, content)

    def _prepare_attempt(
        self, manifest: Manifest, content: LakeManifest, check_token: CheckToken
    ) -> TableSnapshot | Outcome:
        """The snapshot to commit on, or the outcome if there is nothing to commit."""
        batch = manifest.batch
        table = self._newest(content)
        committed = committed_version(table, batch.stream.query_id)
        commits = self._check_log_since(table, content.table_version, committed)
        token = token_of(table, batch.stream.query_id)
        if token is not None and self._is_committed(table, token, manifest):
            return AlreadyCommitted(committed if token.batch_id == batch.batch_id else None)
        check_token(token)
        is_known = len(commits) == table.version() - content.table_version  # no entry was cleaned up
        if not is_known or any(commit.is_vacuum for commit in commits):
            self._check_not_vacuumed(manifest)
        check_supported(table, content.mode)
        return table

    def _newest(self, content: LakeManifest) -> TableSnapshot:
        table = self._snapshot_cache.load(self._uri, self._options)
        if table is None:
            raise dropped(self._uri)
        check_same_table(table, content.table_id)
        return table

    def _is_committed(self, table: TableSnapshot, token: Token, manifest: Manifest) -> bool:
        earlier = partial(earlier_digest, table, self._options, manifest.batch)
        return is_committed(manifest, token, self._name, earlier)

    def _check_not_vacuumed(self, manifest: Manifest) -> None:
        """A vacuum with a short retention deletes files that are not committed yet."""
        missing = self.missing(manifest)
        if missing:
            raise RetryableError(
                f"The Delta table {self._uri} was vacuumed while batch {manifest.batch.batch_id} of query "
                f"{manifest.batch.stream.query_id} was written: {len(missing)} of its {manifest.files} "
                f"files are missing, first {missing[0]}. The batch was not committed. The next start of a "
                "coupled query writes it again. Use a vacuum retention that is longer than a batch takes."
            )

    def _schema_changes(self, table: TableSnapshot, batch: Batch, content: LakeManifest) -> SchemaChanges:
        """What the table still needs to accept the files; an error if it does not accept them."""
        return check_files_fit(table, content, f"batch {batch.batch_id} of query {batch.stream.query_id}")

    def _commit_once(self, table: TableSnapshot, manifest: Manifest, content: LakeManifest) -> Outcome:
        batch, version = manifest.batch, table.version() + 1
        changes = self._changes_of(manifest, content)
        try:
            actions = None if changes is None else changes.file_actions(table, self._now_ms())
        except MissingFileError as error:
            return Conflict(f"another process has committed the batch or removed files meanwhile: {error}")
        crash_points.reach("commit.start", batch.batch_id)
        try:
            self._writer.write(table, manifest, content, actions)
        except Exception as error:  # noqa: BLE001  the table shows whether the batch was committed
            outcome = self._outcome_after(error, manifest, content, version)
            if changes is not None and actions is not None:
                if isinstance(outcome, Conflict):
                    changes.discard(actions)
                else:
                    changes.clean_up(table)
            return outcome
        crash_points.reach("commit.landed", batch.batch_id)
        self._writer.write_log_checkpoint(table, content)
        if changes is not None:
            changes.clean_up(table)
        return Committed(version)

    def _changes_of(self, manifest: Manifest, content: LakeManifest) -> DeltaChanges | None:
        """The changes of a manifest, the same for all attempts to commit it; None if it has none."""
        if not isinstance(content.mode, Changes):
            return None
        if self._changes is None or self._changes.manifest != manifest:
            self._changes = DeltaChanges(
                manifest,
                content,
                self._files(),
                self._options,
                self._rewrite,
                self._search_files,
                self._write_change_data,
                self._open_rows,
            )
        return self._changes

    def _outcome_after(
        self, error: Exception, manifest: Manifest, content: LakeManifest, version: int
    ) -> Outcome:
        """Interpret an error of the commit call. A log checkpoint that fails after the commit raises an error
        too.
        """
        batch = manifest.batch
        if needs_other_features(error):
            raise TableNotSupportedError(
                f"The Delta library cannot commit to the Delta table {self._uri}: {in_short(error)}. "
                "Nothing was committed. Drop these features, or write the table with Delta's own engine."
            ) from error
        failed = failed_batch(
            batch,
            f"the {self._name}",
            in_short(error),
            can_commit_later=not is_local(self._uri),
            cause=error,
        )
        with failed.reading_table():
            found = self._outcome_in_table(error, manifest, content, version)
        if found is None:
            raise failed.not_found() from error
        return found

    def _outcome_in_table(
        self, error: Exception, manifest: Manifest, content: LakeManifest, version: int
    ) -> Committed | Conflict | None:
        batch, table = manifest.batch, self._newest(content)
        token = token_of(table, batch.stream.query_id)
        if token is not None and self._is_committed(table, token, manifest):
            crash_points.reach("commit.landed", batch.batch_id)
            committed = committed_version(table, batch.stream.query_id)
            return Committed(version if committed is None else committed)
        if isinstance(error, (CommitFailedError, FileExistsError)) and table.version() >= version:
            return Conflict(f"version {version} of {self._uri} was taken by another writer")
        return None

    # Files ----------------------------------------------------------------------------------------

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """See `Committer`."""
        missing = self._files().missing([file.path for file in decode(manifest, KIND).files])
        if missing:
            self._cached_table = None
        return missing

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        """See `PayloadCommitter`."""
        return self.delete_files(file.path for files in payloads for file in files)

    def delete_files(self, paths: Iterable[str]) -> int:
        """Delete uncommitted data files; return the number deleted. Missing files are not an error."""
        return self._files().delete(paths)

    def _files(self) -> TableFiles:
        return delta_files(self._uri, self._options)
