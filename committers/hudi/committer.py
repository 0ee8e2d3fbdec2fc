"""The Hudi table committer: one completed instant for each batch, with the batch's token in it.

    claim       the claim of the batch is created for the manifest's instant (`claims`)
    request     the instant becomes pending
    place       the files are copied to where readers look
    complete    `<instant>.commit` is created: the commit; see `layout` for versions 8 and 9

The instant is chosen when the batch is planned, because the rows contain it, and is part of the names of
the manifest's files. So every attempt to commit a manifest uses the same instant and creates the same
objects. The token is the newest claim of the query whose instant is completed; the commit's `extraMetadata`
has it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial

from .. import crash_points
from ..changes.file_search import SearchesFiles
from ..changes.ties import check_ties
from ..contract import (
    AlreadyCommitted,
    Batch,
    Changes,
    Committed,
    Conflict,
    DataFiles,
    Manifest,
    Outcome,
    Token,
)
from ..delta.files import delta_files
from ..errors import NEXT_TRY, CommitStateUnknownError, RetryableError, SchemaMismatchError
from ..file_tables.manifest import LakeManifest, decode
from ..protocol.failed_commit import failed_batch
from ..protocol.token_check import is_committed
from ..target import CheckToken
from ..texts.safe_text import get_logger
from .change_commit import ChangeCommits
from .changes import FileWriters, HudiChanges, written_rows
from .checks import append_metadata, instant_of_files, is_staged, rolled_back, taken
from .claims import Claim, Claims, recorded_origin
from .commit_metadata import inflight_metadata
from .names import planned_instant_of, query_id_of, reservation, visible_path
from .properties import HudiTable
from .publishing import Publishing, withdraw
from .table import KIND, HudiTableFiles, table_now
from .timeline import Timeline, next_instant

logger = get_logger(__name__)


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


class HudiTableCommitter(SearchesFiles):
    """Commits manifests to one Hudi table. See `Committer`. Runs on the driver and in the delivery process.

    Args:
        table_uri: location of the table
        storage_options: as in the Delta library
        now: clock, in UTC
        writers: how commits of changes write files
    """

    def __init__(
        self,
        table_uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        now: Callable[[], datetime] = _utc_now,
        writers: FileWriters | None = None,
    ) -> None:
        self._uri = table_uri
        self._storage_options = dict(storage_options or {})
        self._now = now
        self._writers = writers or FileWriters()
        self._opened: HudiTableFiles | None = None
        self._changes: HudiChanges | None = None
        """Those of the manifest that is being committed."""

    @property
    def _files(self) -> HudiTableFiles:
        if self._opened is None:
            self._opened = HudiTableFiles(self._uri, self._storage_options)
        return self._opened

    def _claims(self, query_id: str) -> Claims:
        return Claims(self._files.storage, query_id)

    # What the table has ---------------------------------------------------------------------------

    def token(self, query_id: str) -> Token | None:
        """See `Committer`."""
        claim = self._committed(query_id)
        return None if claim is None else claim.token

    def _committed(self, query_id: str) -> Claim | None:
        claims = self._claims(query_id)
        with self._files.errors():
            found = claims.all()
        if not found:
            return None
        timeline = self._files.recent_timeline(*[claim.instant for claim in found])
        with self._files.errors():
            return claims.committed_of(found, timeline)

    def check_unchanged(self, query_id: str, table_id: str | None, last_version: int | None) -> None:
        """See `SupportsTableIdentity`. The version of a table is its latest instant."""
        if table_id is None:
            if last_version is None or self._files.load() is None:
                return
        else:
            self._files.load_same(table_id)
        if not last_version:  # a table without commits
            return
        last = str(last_version)
        timeline = self._files.recent_timeline(last)
        if not timeline.has(last) and not timeline.is_archived(last):
            raise rolled_back(self._uri, last, query_id)

    def accept(self, query_id: str) -> None:
        """See `SupportsTableIdentity`. The newest claim of the query then names the latest commit."""
        timeline = self._files.timeline()
        with self._files.errors():
            claims = self._claims(query_id)
            newest = next(iter(claims.all()), None)
            if newest is not None and timeline.commits and not claims.is_committed(newest, timeline):
                claims.move(newest, timeline.commits[-1][0])

    def recorded_origin(self, query_id: str, origins: Sequence[str]) -> str | None:
        """See `SupportsOrigins`."""
        timeline = self._files.timeline()
        with self._files.errors():
            return recorded_origin(self._files.storage, timeline, query_id, origins)

    def has_rows(self) -> bool:
        """See `SupportsOrigins`. The first commit of a table that Penstock has created has no files."""
        return len(self._files.timeline().commits) > 1

    # Commit ---------------------------------------------------------------------------------------

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        """See `Committer`.

        Raises:
            SchemaMismatchError, TableNotSupportedError: the table no longer accepts these files.
            TableChangedError: the table was dropped or re-created.
            CheckpointMismatchError: the table has the batch id with other offsets.
            RetryableError: the table cannot be reached; the batch was not committed.
            CommitStateUnknownError: the batch may have been committed. Do not delete anything.
        """
        batch, content = manifest.batch, decode(manifest, KIND)
        table = self._files.load_same(content.table_id)
        if isinstance(content.mode, Changes):
            changes = self._changes_of(manifest, content)
            return self._change_commits().commit(manifest, content, table, changes, check_token)
        claims = self._claims(batch.stream.query_id)
        crash_points.reach("commit.start", batch.batch_id)
        claim = self._claim(claims, manifest, content)
        instant = instant_of_files(manifest, content)
        with self._files.errors():
            found = claims.all()
        timeline = self._files.recent_timeline(instant, *[one.instant for one in found])
        with self._files.errors():
            committed = claims.committed_of(found, timeline)
        token = None if committed is None else committed.token
        publishing = self._publishing(table, timeline, instant, content)
        try:
            if is_committed(manifest, token, f"Hudi table {self._uri}"):
                return self._already(publishing, claims, committed, timeline, instant, claim)
            check_token(token)
            if claim is None:
                return Conflict(f"another process commits batch {batch.batch_id} with other files")
            if claim.is_done:
                raise rolled_back(self._uri, instant, batch.stream.query_id)
            metadata = append_metadata(manifest, content, self._files, table, timeline, instant)
        except BaseException:
            self._release(claims, claim, timeline)
            raise
        self._withdraw_earlier(claims, claim, timeline)
        return self._publish(manifest, content, publishing, claims, claim, metadata)

    def _change_commits(self) -> ChangeCommits:
        return ChangeCommits(self._files, delta_files(self._uri, self._storage_options), self._now)

    def _changes_of(self, manifest: Manifest, content: LakeManifest) -> HudiChanges:
        """The changes of a manifest, the same for all attempts to commit it."""
        if self._changes is None or self._changes.manifest != manifest:
            data = delta_files(self._uri, self._storage_options)
            self._changes = HudiChanges(manifest, content, data, self._writers, self._search_files)
        return self._changes

    def check_ties(self, batch: Batch, content: LakeManifest) -> None:
        """Check, before the batch is prepared, that each key has one last row. See `ties`."""
        if isinstance(content.mode, Changes):
            opened = delta_files(self._uri, self._storage_options).opened
            check_ties(batch, content.mode, content.files, opened, read_rows=partial(written_rows, opened))

    def _publishing(
        self, table: HudiTable, timeline: Timeline, instant: str, content: LakeManifest
    ) -> Publishing:
        def completion() -> str:
            return next_instant(max(timeline.latest, instant), table_now(table))

        return Publishing(self._files.storage, timeline, instant, content.files, completion)

    def _claim(self, claims: Claims, manifest: Manifest, content: LakeManifest) -> Claim | None:
        instant = instant_of_files(manifest, content)
        witness = visible_path(content.files[0].path)
        with self._files.errors():
            return claims.claim(manifest.batches, instant, witness, content.origins, self._now())

    def _release(self, claims: Claims, claim: Claim | None, timeline: Timeline) -> None:
        """Give up a claim whose instant was not requested, so that the batch can be written again."""
        if claim is None or claim.is_done or claim.instant in timeline.pending:
            return
        if claims.is_committed(claim, timeline):
            return
        with self._files.errors():
            claims.release([claim])

    def _already(
        self,
        publishing: Publishing,
        claims: Claims,
        committed: Claim | None,
        timeline: Timeline,
        instant: str,
        claim: Claim | None,
    ) -> AlreadyCommitted:
        """Finish what a crash after the commit has left.

        Files are put back only if nobody can have replaced and cleaned them: they would be visible again once
        the replacement is archived.
        """
        assert committed is not None
        with self._files.errors():
            if committed.instant == instant:
                if not committed.is_done and timeline.may_lack_files_of(instant):
                    publishing.heal()
                claims.mark_done(committed)
                publishing.clean_up()
                return AlreadyCommitted(int(instant))
            if claim is not None and claim.instant == instant:
                claims.release([claim])
        return AlreadyCommitted()

    def _withdraw_earlier(self, claims: Claims, claim: Claim, timeline: Timeline) -> None:
        """Remove what attempts of abandoned batches have left of their instants."""
        with self._files.errors():
            for other in claims.all():
                is_left = other.path != claim.path and other.batch_id <= claim.batch_id
                if is_left and not claims.is_committed(other, timeline):
                    withdraw(self._files.storage, timeline.layout, other.instant)
                    claims.release([other])

    def _publish(
        self,
        manifest: Manifest,
        content: LakeManifest,
        publishing: Publishing,
        claims: Claims,
        claim: Claim,
        metadata: bytes,
    ) -> Outcome:
        batch = manifest.batch
        is_completing = False
        try:
            if not publishing.request(inflight_metadata(manifest, content.origins, self._files.layout())):
                raise taken(self._uri, claim.instant)
            publishing.place_files()
            is_completing = True
            is_first = publishing.complete(metadata)
        except SchemaMismatchError:
            claims.release([claim])
            raise
        except OSError as error:
            return self._outcome_after(error, manifest, publishing, claims, claim, is_completing)
        crash_points.reach("commit.landed", batch.batch_id)
        self._finish(publishing, claims, claim)
        version = int(claim.instant)
        return Committed(version) if is_first else AlreadyCommitted(version)

    def _finish(self, publishing: Publishing, claims: Claims, claim: Claim) -> None:
        """What is left if this fails is done by the next commit, or found by clean-up."""
        try:
            publishing.heal()
            claims.mark_done(claim)
            publishing.clean_up()
            claims.release([one for one in claims.all() if one.batch_id < claim.batch_id])
        except OSError as error:
            logger.warning("Clean-up after the commit %s failed: %s", claim.instant, error)

    def _outcome_after(
        self,
        error: OSError,
        manifest: Manifest,
        publishing: Publishing,
        claims: Claims,
        claim: Claim,
        is_completing: bool,
    ) -> Outcome:
        """Find out whether the instant was completed, by this attempt or by another process."""
        batch = manifest.batch
        failed = failed_batch(
            batch,
            f"the Hudi table {self._uri}",
            str(error),
            can_commit_later=is_completing and not self._files.storage.is_local,
            cause=error,
        )
        with failed.reading_table():
            timeline = self._files.timeline()
        with failed.reading_table(), self._files.errors():
            is_there = claims.is_committed(claim, timeline)
        if is_there:
            crash_points.reach("commit.landed", batch.batch_id)
            self._finish(publishing, claims, claim)
            return Committed(int(claim.instant))
        not_found = failed.not_found()
        if not isinstance(not_found, CommitStateUnknownError):
            with failed.reading_table(), self._files.errors():
                withdraw(self._files.storage, timeline.layout, claim.instant)
                claims.release([claim])
        if isinstance(error, FileNotFoundError):
            raise RetryableError(
                f"Files of batch {batch.batch_id} of query {batch.stream.query_id} are missing in the Hudi "
                f"table {self._uri}: {error}. The batch was not committed. {NEXT_TRY}"
            ) from error
        raise not_found from error

    # Files ----------------------------------------------------------------------------------------

    def missing(self, manifest: Manifest) -> Sequence[str]:
        """See `Committer`. A file is there if it is staged, or already in its place."""
        files = decode(manifest, KIND).files
        storage = self._files.storage
        with self._files.errors():
            there = storage.existing(file.path for file in files)
            placed = storage.existing(visible_path(file.path) for file in files if file.path not in there)
        return [
            file.path for file in files if file.path not in there and visible_path(file.path) not in placed
        ]

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        """See `Target`. Also withdraws the pending instant and the claim of an attempt to commit them."""
        files = [file for files in payloads for file in files if is_staged(file)]
        if not files or self._files.load() is None:
            return 0
        timeline = self._files.timeline()
        storage = self._files.storage
        with self._files.errors():
            for planned, file in {str(planned_instant_of(one.path)): one for one in files}.items():
                query_id = query_id_of(file.path)
                claims = self._claims(query_id)
                self._change_commits().give_up_planned(planned, query_id)
                own = [claim for claim in claims.all() if planned in (claim.instant, claim.planned)]
                if timeline.has(planned) or any(claims.is_committed(one, timeline) for one in own):
                    continue
                for instant in {planned, *(one.instant for one in own)} & timeline.pending:
                    withdraw(storage, timeline.layout, instant)
                claims.release(own)
                storage.delete_all([reservation(planned)])
            deleted = storage.delete_all([file.path for file in files])
            storage.remove_own_folders([file.path for file in files])
            return deleted
