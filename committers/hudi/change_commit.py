"""Commits changes to a Hudi table: new files, and the next slices of the file groups with rows that leave.

    find        the rows that leave, on the newest slices; the new files are staged
    claim       the claim of the batch is created, as for rows that are appended
    record      the next record of the table is created (`change_log`): now the commit is decided on
    request     the instant becomes pending
    place       the files are copied to where readers look
    check       the slices that are rewritten are still the newest ones, and no other writer changes rows
    complete    `<instant>.commit` is created: the commit

Readers take the slice with the latest instant for the newest one of its file group. So the instant of the
commit is later than all others: that of the plan, or a new one if somebody has committed since.

Everything after the record has the same result, however often and by whom it is done. If another writer has
rewritten one of the slices in the meantime, the commit is given up, and the next attempt looks again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime

from .. import crash_points
from ..contract import AlreadyCommitted, Committed, Conflict, DataFile, Manifest, Outcome
from ..errors import NEXT_TRY, CommitStateUnknownError, PenstockError, RetryableError
from ..file_tables.files import MissingFileError, TableFiles
from ..file_tables.manifest import LakeManifest
from ..protocol.failed_commit import failed_batch
from ..protocol.token_check import is_committed
from ..target import CheckToken
from ..texts.safe_text import get_logger
from .change_log import ChangeLog, ChangeRecord
from .changes import ChangedSlices, HudiChanges, with_schema
from .checks import batch_name, check_partitioning, rolled_back, schema_after
from .claims import Claims
from .commit_metadata import commit_metadata, extra_metadata, inflight_metadata, token_in
from .file_slices import FileSlice, newest_slices, replaced_groups
from .names import visible_path
from .properties import HudiTable
from .publishing import Publishing, withdraw
from .schema import Record, parse_record
from .table import HudiTableFiles, table_now
from .timeline import Timeline, next_instant

logger = get_logger(__name__)


class ChangeCommits:
    """The commits of changes to one table.

    Args:
        data: the files of the table
        now: clock, in UTC
    """

    def __init__(self, files: HudiTableFiles, data: TableFiles, now: Callable[[], datetime]) -> None:
        self._files = files
        self._data = data
        self._now = now
        self._storage = files.storage
        self._log = ChangeLog(files.storage, files.uri)

    def commit(
        self,
        manifest: Manifest,
        content: LakeManifest,
        table: HudiTable,
        changes: HudiChanges,
        check_token: CheckToken,
    ) -> Outcome:
        """See `Committer`.

        Raises:
            SchemaMismatchError, TableNotSupportedError: the table no longer accepts these files.
            TableChangedError: the batch was rolled back.
            CheckpointMismatchError: the table has the batch id with other offsets.
            RetryableError: the table cannot be reached; the batch was not committed.
            CommitStateUnknownError: the batch may have been committed. Do not delete anything.
        """
        batch, claims = manifest.batch, Claims(self._storage, manifest.batch.stream.query_id)
        crash_points.reach("commit.start", batch.batch_id)
        with self._files.errors():
            before = self._log.newest()
            if before is not None and not before.is_done and (reason := self._finish(before, table)):
                return Conflict(reason)
            found = claims.all()
        timeline = self._files.timeline()
        with self._files.errors():
            committed = claims.committed_of(found, timeline)
        token = None if committed is None else committed.token
        if committed is not None and is_committed(manifest, token, f"Hudi table {self._files.uri}"):
            with self._files.errors():
                claims.mark_done(committed)
            self._delete_staged(changes, content)
            return AlreadyCommitted(int(committed.instant) if committed.token.matches(batch.digest) else None)
        check_token(token)
        planned = str(content.table_version)
        if lost := next((one for one in found if one.planned == planned and one.is_done), None):
            raise rolled_back(self._files.uri, lost.instant, batch.stream.query_id)
        with self._files.errors():
            if reason := self._pending_elsewhere(timeline):
                return Conflict(reason)
        return self._attempt(manifest, content, table, changes, timeline, before, claims)

    def _attempt(
        self,
        manifest: Manifest,
        content: LakeManifest,
        table: HudiTable,
        changes: HudiChanges,
        timeline: Timeline,
        before: ChangeRecord | None,
        claims: Claims,
    ) -> Outcome:
        name, uri, planned = batch_name(manifest), self._files.uri, str(content.table_version)
        check_partitioning(uri, table, content, name)
        schema = schema_after(self._files, table, timeline, content, name)
        is_latest = timeline.is_after_commits(planned)
        instant = planned if is_latest else self._files.reserve_instant(table, timeline)
        of_commit = with_schema(content, json.dumps(schema, separators=(",", ":")), instant)
        slices = self._newest_slices(timeline)
        try:
            changed = changes.write(slices, schema, parse_record(content.schema_json, uri), of_commit)
        except MissingFileError:
            timeline = self._files.timeline()
            if {one.path for one in slices} <= {one.path for one in self._newest_slices(timeline)}:
                raise
            return Conflict("another writer has replaced files of the table, and deleted them")
        try:
            record = self._record(manifest, content, timeline, instant, schema, changed, before, claims)
        except PenstockError:
            changes.discard(changed.written)
            raise
        try:
            added = record is not None and self._log.add(record)
        except OSError as error:
            raise self._unknown(manifest, error) from error
        if record is None or not added:
            changes.discard(changed.written)
            self._storage.remove_own_folders(changed.written)
            return Conflict("another process changes rows of the table, or commits this batch")
        outcome = self._complete(manifest, table, record, claims, timeline)
        if isinstance(outcome, Committed):
            self._delete_staged(changes, content)
        return outcome

    def _delete_staged(self, changes: HudiChanges, content: LakeManifest) -> None:
        changes.clean_up()
        self._storage.remove_own_folders([file.path for file in content.files])

    def _record(
        self,
        manifest: Manifest,
        content: LakeManifest,
        timeline: Timeline,
        instant: str,
        schema: Record,
        changed: ChangedSlices,
        before: ChangeRecord | None,
        claims: Claims,
    ) -> ChangeRecord | None:
        """Claim the batch; None if another process has."""
        witness = visible_path(changed.files[0]) if changed.files else ""
        with self._files.errors():
            claim = claims.claim(
                manifest.batches,
                instant,
                witness,
                content.origins,
                self._now(),
                planned=str(content.table_version),
            )
        if claim is None:
            return None
        layout = timeline.layout
        return ChangeRecord(
            number=0 if before is None else before.number + 1,
            query_id=manifest.batch.stream.query_id,
            instant=instant,
            claim=claim.path,
            files=changed.files,
            written=changed.written,
            based_on=changed.based_on,
            requested=inflight_metadata(manifest, content.origins, layout),
            completed=commit_metadata(
                manifest, changed.added, content.origins, schema, layout, changed.slices
            ),
        )

    def _complete(
        self,
        manifest: Manifest,
        table: HudiTable,
        record: ChangeRecord,
        claims: Claims,
        timeline: Timeline,
    ) -> Outcome:
        batch = manifest.batch
        try:
            self._withdraw_earlier(claims, record, timeline)
            reason = self._finish(record, table, batch.batch_id)
        except (OSError, PenstockError) as error:
            if self._is_completed(record, manifest, error):
                reason = None
            elif isinstance(error, FileNotFoundError):
                raise RetryableError(
                    f"Files of {batch_name(manifest)} are missing in the Hudi table {self._files.uri}: "
                    f"{error}. The batch was not committed. {NEXT_TRY}"
                ) from error
            else:
                raise self._unknown(manifest, error) from error
        if reason:
            return Conflict(reason)
        try:
            claims.release([one for one in claims.all() if one.batch_id < batch.batch_id])
        except OSError as error:
            logger.warning("Clean-up after the commit %s failed: %s", record.instant, error)
        return Committed(int(record.instant))

    def _is_completed(self, record: ChangeRecord, manifest: Manifest, error: Exception) -> bool:
        """Find out whether the instant was completed, by this attempt or by another process."""
        try:
            is_there = self._files.timeline().has(record.instant)
        except PenstockError:
            raise self._unknown(manifest, error) from error
        if is_there:
            crash_points.reach("commit.landed", manifest.batch.batch_id)
        return is_there

    def _unknown(self, manifest: Manifest, error: Exception) -> CommitStateUnknownError:
        """Whoever comes next completes an instant that has a record."""
        table = f"the Hudi table {self._files.uri}"
        failed = failed_batch(manifest.batch, table, str(error), can_commit_later=True, cause=error)
        unknown = failed.not_found()
        assert isinstance(unknown, CommitStateUnknownError)
        return unknown

    # After the decision ---------------------------------------------------------------------------

    def _finish(self, record: ChangeRecord, table: HudiTable, batch_id: int | None = None) -> str | None:
        """Complete the instant of a record; return why not if it is given up.

        Args:
            batch_id: for the process that has added the record

        Raises:
            FileNotFoundError: a staged file is missing. Then the commit is given up.
            OSError, RetryableError: the storage cannot be reached now.
        """
        timeline = self._files.timeline()
        publishing = self._publishing(record, table, timeline)
        if not timeline.has(record.instant) and not timeline.is_archived(record.instant):
            try:
                if not publishing.request(record.requested):
                    self._give_up(record, timeline)
                    return f"another writer has used the instant {record.instant}"
                publishing.place_files()
            except FileNotFoundError:
                if self._files.timeline().has(record.instant):  # completed and cleaned up meanwhile
                    return None
                self._give_up(record, timeline)
                if batch_id is None:
                    return f"files of the commit {record.instant} are missing"
                raise
            if reason := self._conflict(record):
                self._give_up(record, timeline)
                return reason
            if not self._log.is_open(record):
                return self._after_others(record, publishing)
            publishing.complete(record.completed)
            if batch_id is not None:
                crash_points.reach("commit.landed", batch_id)
        self._clean_up(record, publishing)
        return None

    def _after_others(self, record: ChangeRecord, publishing: Publishing) -> str | None:
        """Return None if another process has completed the instant. If it has given it up, take back what
        this one has done meanwhile: files of the instant would be visible once the archival is past it.
        """
        timeline = self._files.timeline()
        if timeline.has(record.instant):
            return None
        publishing.request(record.requested)  # else they are not known to be ours
        withdraw(self._storage, timeline.layout, record.instant)
        return "another process has given up the commit"

    def _publishing(self, record: ChangeRecord, table: HudiTable, timeline: Timeline) -> Publishing:
        def completion() -> str:
            return next_instant(max(timeline.latest, record.instant), table_now(table))

        files = [DataFile(path, 0, 0) for path in record.files]
        return Publishing(self._storage, timeline, record.instant, files, completion)

    def _clean_up(self, record: ChangeRecord, publishing: Publishing) -> None:
        """What is left if this fails is done by the next commit."""
        try:
            try:
                publishing.heal()
            except FileNotFoundError:  # placed, and deleted since by Hudi's cleaner
                logger.info("Staged files of the commit %s are deleted already.", record.instant)
            claims = Claims(self._storage, record.query_id)
            for claim in claims.all():
                if claim.path == record.claim:
                    claims.mark_done(claim)
            publishing.clean_up()
            self._storage.remove_own_folders(record.files)
            self._log.mark_done(record)
        except OSError as error:
            logger.warning("Clean-up after the commit %s failed: %s", record.instant, error)

    def give_up_planned(self, instant: str, query_id: str) -> None:
        """Give up a commit of the query that has a record, and was not completed.

        Args:
            instant: the one that its batch was planned with

        Raises:
            OSError: the storage cannot be reached now.
        """
        record = self._log.newest()
        if record is None or record.is_done or record.query_id != query_id:
            return
        claims = Claims(self._storage, query_id)
        own = next((one for one in claims.all() if one.path == record.claim), None)
        timeline = self._files.timeline()
        if own is not None and own.planned == instant and not timeline.has(record.instant):
            self._give_up(record, timeline)

    def _give_up(self, record: ChangeRecord, timeline: Timeline) -> None:
        """Take back what was done for an instant that is not completed."""
        self._log.mark_done(record)
        withdraw(self._storage, timeline.layout, record.instant)
        claims = Claims(self._storage, record.query_id)
        claims.release([one for one in claims.all() if one.path == record.claim])
        self._storage.delete_all(record.written)
        self._storage.remove_own_folders(record.written)

    def _withdraw_earlier(self, claims: Claims, record: ChangeRecord, timeline: Timeline) -> None:
        """Remove what attempts of abandoned batches, and earlier ones of this batch, have left."""
        found = claims.all()
        own = next((one for one in found if one.path == record.claim), None)
        for other in found:
            is_left = own is not None and (other.batch_id, other.number) < (own.batch_id, own.number)
            if is_left and not claims.is_committed(other, timeline):
                if other.instant != record.instant:
                    withdraw(self._storage, timeline.layout, other.instant)
                claims.release([other])

    # Other writers --------------------------------------------------------------------------------

    def _newest_slices(self, timeline: Timeline) -> list[FileSlice]:
        with self._files.errors():
            replaced = replaced_groups(self._storage, timeline)
        files = ((path, size_bytes) for path, size_bytes, _ in self._data.walk())
        return list(newest_slices(files, timeline, replaced, self._files.uri).values())

    def _pending_elsewhere(self, timeline: Timeline) -> str | None:
        """Return why changes have to wait: a writer of Hudi may be rewriting files. Appends of other queries
        add files only.
        """
        for instant in sorted(timeline.pending_changes):
            content = self._storage.read(timeline.layout.requested(instant))
            if content is None or token_in(extra_metadata(content)) is None:
                return (
                    f"the instant {instant} of another writer is pending, and may rewrite files. If that "
                    "writer is dead, let Hudi roll it back, or delete the instant"
                )
        return None

    def _conflict(self, record: ChangeRecord) -> str | None:
        """Return why the instant cannot be completed. Called right before that, as it takes no lock of
        Hudi's.
        """
        timeline = self._files.timeline()
        if timeline.has(record.instant):
            return None
        if reason := self._pending_elsewhere(timeline):
            return reason
        newest = {one.path for one in self._newest_slices(timeline)}
        gone = [path for path in record.based_on if path not in newest]
        return f"another writer has rewritten {gone[0]}" if gone else None
