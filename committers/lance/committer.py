"""The committer of Lance tables: one commit of the table per batch, with the batch's token in it.

An append of the Lance library conflicts with nothing. Not even `max_retries=0` stops one that is based on an
old version: it is moved to the newest one. A `commit_lock` that compares versions replaces the library's
atomic creation of the next manifest by a check and a write, so another writer's version could be overwritten.

So a batch is committed as a `Merge`: all fragments of the version that was read, the new ones, and the schema
with the token in its metadata. The library rejects a merge if anything was committed since that version,
except for indexes and configuration, which stay. The next version's manifest is created only if it does not
exist, by a hard link on a local disk and a conditional PUT in an object store. So of two processes that have
read the same version, only one commits, and the other finds the token.

A merge cannot remove fragments: a batch that replaces all rows is an `Overwrite`, which with `max_retries=0`
is committed only as the version after the one that was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from .. import crash_points
from ..changes.key_files import key_files
from ..changes.rewriting import RewriteFiles
from ..changes.ties import check_ties
from ..contract import (
    AlreadyCommitted,
    Batch,
    Changes,
    Committed,
    Conflict,
    DataFile,
    DataFiles,
    Manifest,
    Outcome,
    Token,
)
from ..delta.files import delta_files
from ..errors import RetryableError
from ..file_tables.clock import now_ms
from ..file_tables.manifest import LakeManifest, decode
from ..file_tables.merged_batches import history_properties
from ..file_tables.table_changes import check_not_behind
from ..protocol.failed_commit import failed_batch
from ..protocol.token_check import is_committed
from ..target import CheckToken
from .changes import ChangedFragments, LanceChanges
from .fragments import new_fragments
from .library import in_short, is_local, load_if_there, read_file
from .schema import check_files_fit, with_metadata
from .table import (
    KIND,
    changes_for_token,
    check_same_table,
    dropped,
    recorded_origin,
    token_of,
)

if TYPE_CHECKING:
    from lance import LanceDataset


class LanceTableCommitter:
    """Commits manifests to one Lance table. Runs on the driver and in the delivery process, one instance per
    call. Data files are opened only for changes by key.

    Args:
        table_uri: a local path or a URL
        storage_options: for the object store of the Lance library
        now_ms: clock, milliseconds since 1970
        rewrite: see `RewriteFiles`
    """

    def __init__(
        self,
        table_uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        now_ms: Callable[[], int] = now_ms,
        rewrite: RewriteFiles | None = None,
    ) -> None:
        self._uri = table_uri
        self._rewrite = rewrite
        self._changes: tuple[str, LanceChanges] | None = None
        """Those of the manifest that is being committed, and its batch."""
        self._options = dict(storage_options or {})
        self._now_ms = now_ms
        self._loaded: LanceDataset | None = None

    # What the table has -----------------------------------------------------------------------------

    def token(self, query_id: str) -> Token | None:
        """See `Committer`."""
        table = self._table()
        return None if table is None else token_of(table, query_id)

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """See `SupportsTableIdentity`. A restore removes tokens together with their rows."""
        table = self._table()
        if table is None:
            if table_id is not None:
                raise dropped(self._uri)
            return
        check_same_table(table, table_id)
        check_not_behind(f"Lance table {self._uri}", table.version, last_version)

    def accept(self, query_id: str) -> None:
        """Nothing to do: what the table has of the query is in its token."""

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """See `SupportsOrigins`."""
        table = self._table()
        return None if table is None else recorded_origin(table, query_id, origins)

    def has_rows(self) -> bool:
        """See `SupportsOrigins`."""
        table = self._table()
        return table is not None and bool(table.get_fragments())

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """See `Committer`."""
        missing = delta_files(self._uri, self._options).missing(
            [file.path for file in decode(manifest, KIND).files]
        )
        if missing:
            self._loaded = None
        return missing

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        """See `PayloadCommitter`."""
        paths = [file.path for files in payloads for file in files]
        return delta_files(self._uri, self._options).delete(paths)

    def _table(self) -> LanceDataset | None:
        if self._loaded is None:
            self._loaded = load_if_there(self._uri, self._options)
        return self._loaded

    def check_ties(self, batch: Batch, content: LakeManifest) -> None:
        """Check, before the batch is prepared, that each key has one last row. See `ties`."""
        if isinstance(content.mode, Changes):
            opened = delta_files(self._uri, self._options).opened
            check_ties(batch, content.mode, content.files, opened, read_rows=self._read)

    def _read(self, file: DataFile) -> pa.Table:
        return read_file(f"{self._uri}/{file.path}", self._options)

    # Commit -------------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """See `Committer`.

        Raises:
            TableNotSupportedError: the table no longer accepts these files.
            TableChangedError: the table was dropped, re-created or restored.
            RetryableError: the table cannot be read or written; the batch was not committed.
        """
        content = decode(manifest, KIND)
        table = self._newest(content)
        if self._has(table, manifest):
            return AlreadyCommitted()
        check_token(token_of(table, manifest.batch.stream.query_id))
        new_columns = check_files_fit(table, content, _name(manifest))
        if new_columns:
            if not self._add_columns(table, new_columns, manifest):
                return Conflict("another writer committed while the table's columns were added")
            table = self._newest(content)
            if self._has(table, manifest):
                return AlreadyCommitted()
            if check_files_fit(table, content, _name(manifest)):
                return Conflict("another writer removed the columns that were just added")
        return self._commit_once(table, manifest, content)

    def _newest(self, content: LakeManifest) -> LanceDataset:
        self._loaded = None
        table = self._table()
        if table is None:
            raise dropped(self._uri)
        check_same_table(table, content.table_id)
        check_not_behind(f"Lance table {self._uri}", table.version, content.table_version)
        return table

    def _has(self, table: LanceDataset, manifest: Manifest) -> bool:
        token = token_of(table, manifest.batch.stream.query_id)
        return is_committed(manifest, token, f"Lance table {self._uri}")

    def _add_columns(self, table: LanceDataset, new: Sequence[pa.Field], manifest: Manifest) -> bool:
        """Add the columns in a commit of their own; return False if another writer was faster.

        After a crash the new columns are NULL in every row, and recovery of the batch finds them.
        """
        from lance.commit import CommitConflictError

        try:
            table.add_columns(pa.schema(new))
        except CommitConflictError:
            return False
        except Exception as error:
            raise RetryableError(
                f"The columns {', '.join(field.name for field in new)} could not be added to the Lance table "
                f"{self._uri}: {in_short(error)}. Batch {manifest.batch.batch_id} was not committed."
            ) from error
        crash_points.reach("evolve.done", manifest.batch.batch_id)
        return True

    def _commit_once(self, table: LanceDataset, manifest: Manifest, content: LakeManifest) -> Outcome:
        from lance import LanceDataset, LanceOperation, Transaction

        changes = changes_for_token(table, manifest.batch, content.origins, self._now_ms())
        schema = with_metadata(table, changes)
        operation: LanceOperation.BaseOperation
        changed = self._fragments(table, manifest, content)
        fragments = new_fragments(table, content.with_files(changed.files))
        if content.mode == "overwrite":
            operation = LanceOperation.Overwrite(schema, fragments)
        else:
            operation = LanceOperation.Merge([*changed.kept, *fragments], schema, preserves_nullability=True)
        shown = history_properties(manifest)  # by `LanceDataset.read_transaction`; no decision depends on it
        transaction = Transaction(table.version, operation, transaction_properties=shown)
        crash_points.reach("commit.start", manifest.batch.batch_id)
        try:
            committed = LanceDataset.commit(
                table, transaction, max_retries=0, storage_options=self._options or None
            )
        except Exception as error:  # noqa: BLE001  the table shows whether the batch was committed
            outcome = self._outcome_after(error, table.version, manifest, content)
            if isinstance(outcome, Conflict):
                self.discard([changed.written])
            return outcome
        self._loaded = committed
        crash_points.reach("commit.landed", manifest.batch.batch_id)
        self.discard([key_files(content.files)])
        return Committed(committed.version)

    def _fragments(self, table: LanceDataset, manifest: Manifest, content: LakeManifest) -> ChangedFragments:
        if not isinstance(content.mode, Changes):
            kept = tuple([fragment.metadata for fragment in table.get_fragments()])
            return ChangedFragments(kept, content.files)
        name = _name(manifest)
        if self._changes is None or self._changes[0] != name:
            files = delta_files(self._uri, self._options)
            self._changes = name, LanceChanges(manifest, content, files, self._options, self._rewrite)
        return self._changes[1].fragments(table)

    def _outcome_after(
        self, error: Exception, read_version: int, manifest: Manifest, content: LakeManifest
    ) -> Outcome:
        """Interpret an error of the commit. A request for a version that exists can no longer succeed."""
        from lance.commit import CommitConflictError

        failed = failed_batch(
            manifest.batch,
            f"the Lance table {self._uri}",
            in_short(error),
            can_commit_later=not is_local(self._uri),
            cause=error,
        )
        with failed.reading_table():
            table = self._newest(content)
            if self._has(table, manifest):
                crash_points.reach("commit.landed", manifest.batch.batch_id)
                return Committed(table.version)
        if isinstance(error, CommitConflictError) or table.version > read_version:
            return Conflict(f"another writer has committed version {table.version}")
        raise failed.not_found() from error


def _name(manifest: Manifest) -> str:
    return f"batch {manifest.batch.batch_id} of query {manifest.batch.stream.query_id}"
