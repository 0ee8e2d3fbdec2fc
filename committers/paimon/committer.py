"""The committer of Paimon tables: one snapshot per batch, with the batch's token in it.

pypaimon has two phases, but does not filter what is committed already. Here it makes one attempt, which
writes the manifests, and hands the snapshot over. The snapshot is committed only as the next one after that
on which the token was checked. So of two processes only one commits, and the other one finds the token.

Without a catalog, the file of the snapshot is created by a hard link: pypaimon itself checks whether it
exists and then renames a file, under a lock of the process, so two processes replace each other's snapshots.
A REST catalog compares the base of the commit with its newest snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from .. import crash_points
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
from ..errors import SchemaMismatchError, TableChangedError
from ..file_tables.clock import now_ms
from ..file_tables.files import MissingFileError, TableFiles
from ..file_tables.manifest import LakeManifest, decode
from ..file_tables.merged_batches import history_properties
from ..protocol.failed_commit import failed_batch
from ..protocol.token_check import is_committed
from ..target import CheckToken
from ..texts.safe_text import get_logger
from .changes import PaimonChanges, SequencedFiles, WriteRows, read_rows
from .features import refuse_unsupported
from .files import files_of
from .folder import KIND
from .merge_tree import DELETE, SEQUENCE, kind_of
from .merge_tree import KIND as ROW_KIND
from .messages import messages_of
from .plan import schema_id_of
from .publishing import NextSnapshot
from .sequences import NEWEST, check_buckets, newest_sequence
from .table import Head, PaimonTable, check_not_behind, check_same_table, dropped
from .tokens import USER_PREFIX, Note, Tokens

logger = get_logger(__name__)


class PaimonTableCommitter:
    """Commits manifests to one Paimon table. Runs on the driver and in the delivery process, one instance per
    call. Data files are opened only for changes by key.

    Args:
        now_ms: clock, milliseconds since 1970
        write: for changes; see `PaimonChanges`
    """

    def __init__(
        self,
        table: PaimonTable,
        *,
        now_ms: Callable[[], int] = now_ms,
        write: WriteRows | None = None,
    ) -> None:
        self._write = write
        self._changes: PaimonChanges | None = None
        self._uri = table.place
        self._table = table
        self._tokens = Tokens(table)
        self._now_ms = now_ms

    # What the table has -----------------------------------------------------------------------------

    def token(self, query_id: str) -> Token | None:
        """See `Committer`."""
        return self._tokens.note(query_id).token

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """See `SupportsTableIdentity`."""
        if self._table.table_id() is None:
            if table_id is not None:
                raise dropped(self._uri)
            return
        check_same_table(self._table, table_id)
        check_not_behind(self._table, last_version)
        self._tokens.note(query_id)

    def accept(self, query_id: str) -> None:
        """Take the snapshots that the table has for all that the query has committed."""
        self._tokens.forget(query_id)

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """See `SupportsOrigins`."""
        return self._tokens.recorded_origin(query_id, origins)

    def has_rows(self) -> bool:
        """See `SupportsOrigins`."""
        return bool(self._table.snapshot_ids())

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """See `Committer`."""
        paths, files = [file.path for file in decode(manifest, KIND).files], files_of(self._table)
        return paths if files is None else files.missing(paths)

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        """See `PayloadCommitter`."""
        files = files_of(self._table)
        return 0 if files is None else files.delete([file.path for payload in payloads for file in payload])

    def check_ties(self, batch: Batch, content: LakeManifest) -> None:
        """Check, before the batch is prepared, that each key has one last row. See `ties`."""
        if isinstance(content.mode, Changes):
            files = self._files()
            check_ties(batch, content.mode, content.files, files.opened, read_rows=self._read_upserts)

    def _files(self) -> TableFiles:
        files = files_of(self._table)
        if files is None:
            raise dropped(self._uri)
        return files

    def _read_upserts(self, file: DataFile) -> pa.Table:
        rows = read_rows(self._files().opened, file.path)
        staying = rows.filter(pc.not_equal(rows.column(ROW_KIND), kind_of(DELETE)))
        return staying.drop_columns([SEQUENCE, ROW_KIND])

    # Commit -------------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """See `Committer`.

        Raises:
            TableNotSupportedError: the table no longer accepts these files.
            TableChangedError: the table was dropped, re-created or rolled back, or it cannot be known
                whether the batch is in it.
            RetryableError: the table cannot be read or written; the batch was not committed.
        """
        content = decode(manifest, KIND)
        query_id = manifest.batch.stream.query_id
        check_same_table(self._table, content.table_id)
        check_not_behind(self._table, content.table_version)
        base = self._table.head()
        known = self._tokens.note(query_id, planned_at=content.table_version)
        if is_committed(manifest, known.token, f"Paimon table {self._uri}"):
            self._settle(manifest, content, known)
            return AlreadyCommitted(known.snapshot_id)
        check_token(known.token)
        loaded = self._table.load()
        refuse_unsupported(loaded, self._uri, content.mode)
        planned = loaded.schema_manager.get_schema(schema_id_of(content))
        if planned is None:
            raise TableChangedError(
                f"The Paimon table {self._uri} no longer has the schema {schema_id_of(content)}, with which "
                f"{_name(manifest)} was written: the table was rolled back. Nothing was committed. A replay "
                "of the batch writes new files."
            )
        if isinstance(content.mode, Changes):
            now = loaded.table_schema.options.get("bucket")
            if planned.options.get("bucket") != now:
                raise SchemaMismatchError(
                    f"The Paimon table {self._uri} has bucket={now}, and {_name(manifest)} was written for "
                    f"bucket={planned.options.get('bucket')}. Nothing was committed. A replay of the batch "
                    "writes new files."
                )
            check_buckets(self._table, loaded, base.snapshot_id)
        return self._commit_once(loaded, base, known, manifest, content)

    def _commit_once(
        self, loaded: Any, base: Head, known: Note, manifest: Manifest, content: LakeManifest
    ) -> Outcome:
        messages, properties = messages_of(loaded, content, _name(manifest)), history_properties(manifest)
        changes, sequenced = None, SequencedFiles(())
        if isinstance(content.mode, Changes) and messages:
            newest = newest_sequence(self._table, loaded, base.snapshot_id)
            try:
                changes = self._changes_of(manifest, content)
                sequenced = changes.sequenced(loaded, messages, newest)
            except MissingFileError as error:
                return Conflict(f"another process has committed the batch, or removed files: {error}")
            messages = messages_of(loaded, content.with_files(sequenced.files), _name(manifest))
            properties[NEWEST] = str(sequenced.newest)
        batch = manifest.batch
        next_snapshot = NextSnapshot(self._table, loaded, content.table_id, base)
        crash_points.reach("commit.start", batch.batch_id)
        try:
            self._tokens.begin(batch.stream.query_id, known, base.snapshot_id, self._now_ms())
            next_snapshot.commit(
                messages,
                user=USER_PREFIX + batch.stream.query_id,
                identifier=batch.batch_id,
                properties=properties,  # only the digest and the sequence number decide anything
                overwrites=content.mode == "overwrite",
            )
        except Exception as error:  # noqa: BLE001  the table shows whether the batch was committed
            outcome = self._outcome_after(error, next_snapshot, manifest, content)
            if changes is not None and isinstance(outcome, Conflict):
                changes.discard(sequenced)
            return outcome
        crash_points.reach("commit.landed", batch.batch_id)
        self._end(manifest, content, base.snapshot_id + 1)
        if changes is not None:
            changes.clean_up(sequenced)
        return Committed(base.snapshot_id + 1)

    def _changes_of(self, manifest: Manifest, content: LakeManifest) -> PaimonChanges:
        """The changes of a manifest, the same for all attempts to commit it."""
        if self._changes is None or self._changes.manifest != manifest:
            self._changes = PaimonChanges(manifest, content, self._files(), self._write)
        return self._changes

    def _outcome_after(
        self, error: Exception, tried: NextSnapshot, manifest: Manifest, content: LakeManifest
    ) -> Outcome:
        failed = failed_batch(
            manifest.batch,
            f"the Paimon table {self._uri}",
            self._table.in_short(error),
            can_commit_later=tried.may_commit_later,
        )
        with failed.reading_table():
            check_same_table(self._table, content.table_id)
            known = self._tokens.note(manifest.batch.stream.query_id, planned_at=content.table_version)
            if is_committed(manifest, known.token, f"Paimon table {self._uri}"):
                crash_points.reach("commit.landed", manifest.batch.batch_id)
                self._settle(manifest, content, known)
                return Committed(known.snapshot_id)
            head = self._table.head()
        if not tried.may_commit_later:
            tried.clean_up()
        if head != tried.base:
            return Conflict(f"another writer has committed snapshot {head.snapshot_id}")
        raise failed.not_found() from None

    # The note -----------------------------------------------------------------------------------------

    def _settle(self, manifest: Manifest, content: LakeManifest, known: Note) -> None:
        if known.batch_id == manifest.batch.batch_id:
            self._end(manifest, content, known.snapshot_id)

    def _end(self, manifest: Manifest, content: LakeManifest, snapshot_id: int) -> None:
        """Note that the batch is committed. If that fails, its snapshot shows it until it expires."""
        try:
            self._tokens.end(manifest.batch, snapshot_id, content.origins, self._now_ms())
            for name in self._tokens.old_batch_writes(self._now_ms()):
                with suppress(FileNotFoundError):
                    self._table.delete(name)
        except OSError as error:
            logger.warning("The note of a commit to the Paimon table %s failed: %s", self._uri, error)


def _name(manifest: Manifest) -> str:
    return f"batch {manifest.batch.batch_id} of query {manifest.batch.stream.query_id}"
