"""Publishes data files in a folder of the local disk or of an object store.

Tasks write files that no reader sees. The commit replaces one small file per query, the journal, which has
the token and lists the files of the last batch; then it publishes these files. A process that dies in between
leaves the rest to the next one that reads the token: it publishes them. `Place` has what differs between the
storages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ..contract import (
    AlreadyCommitted,
    CheckToken,
    Committed,
    Conflict,
    DataFile,
    DataFiles,
    Manifest,
    Outcome,
    Token,
)
from ..crash_points import reach
from ..errors import CommitStateUnknownError, RetryableError, TableChangedError
from ..failed_commit import failed_batch
from ..file_manifests import FileManifests, data_file
from ..token_check import is_committed
from .journal import Journal
from .local_folder import LocalFolder
from .markers import Markers
from .object_folder import ObjectFolder, is_remote
from .place import FileState, JournalChangedError, Place, StoredJournal
from .staged import StagedFiles, UploadedFile, staged_files, upload_of

KIND = "files"
BATCHES_MAX = 1000
"""Maximum number of batches in one delivery."""
_TRIES_MAX = 10
"""Other processes that publish a batch at the same time as this one."""


def _file_of(
    path: object, size_bytes: object, rows: object, values: object, statistics: object, upload: object = None
) -> DataFile:
    file = data_file(path, size_bytes, rows, values, statistics)
    if upload is None:
        return file
    if not isinstance(upload, list):
        raise TypeError("invalid upload of a file")
    return UploadedFile(
        file.path, file.size_bytes, file.rows, file.partition_values, file.statistics, upload_of(*upload)
    )


MANIFESTS = FileManifests(KIND, file_of=_file_of)


def place_of(folder: str, storage_options: Mapping[str, str]) -> Place:
    """Return the place of a folder: an absolute path, or a URL such as `s3://bucket/prefix`."""
    return ObjectFolder(folder, storage_options) if is_remote(folder) else LocalFolder(folder)


@dataclass(frozen=True, slots=True)
class FilesCommitter:
    """See `PayloadCommitter`. Keeps nothing between two calls."""

    folder: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def place(self) -> Place:
        return place_of(self.folder, self.storage_options)

    @property
    def markers(self) -> Markers:
        """What new batches get. Without the options of a query, nothing."""
        return Markers()

    def token(self, query_id: str) -> Token | None:
        """Return the last batch of the query, after all its files are published."""
        journal, _ = self._rolled_forward(query_id)
        return None if journal is None else journal.token

    def missing(self, manifest: Manifest) -> Sequence[str]:
        why = self.place.why_missing
        states = self.place.states(staged_files(MANIFESTS.decode(manifest)))
        paths = [path for path, state in states.items() if state is FileState.MISSING]
        return [f"{path} ({why})" if why else path for path in paths]

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        batch = manifest.batch
        query_id = batch.stream.query_id
        journal, stored = self._rolled_forward(query_id)
        token = None if journal is None else journal.token
        if is_committed(manifest, token, f"folder {self.folder}"):
            return AlreadyCommitted()
        check_token(token)
        files = MANIFESTS.decode(manifest)
        new = Journal(
            Token(batch.batch_id, batch.digest), staged_files(files), markers=self.markers.of(batch, files)
        )
        self._check_staged(batch.batch_id, new.files)
        reach("commit.start", batch.batch_id)
        content = new.encode()
        try:
            self.place.replace_journal(query_id, content, stored)
        except (JournalChangedError, RetryableError, CommitStateUnknownError) as error:
            failed = failed_batch(
                batch,
                f"folder {self.folder}",
                str(error),
                can_commit_later=isinstance(error, CommitStateUnknownError),
            )
            with failed.reading_table():
                found = self.place.read_journal(query_id)
            if found is None or found.content != content:
                if isinstance(error, JournalChangedError):
                    return Conflict(str(error))
                raise failed.not_found() from error
        reach("commit.landed", batch.batch_id)
        self._rolled_forward(query_id)
        return Committed(batch.batch_id)

    def mergeable(self, manifests: Iterable[Manifest]) -> list[Manifest]:
        """See `Mergeable`."""
        return list(islice(manifests, BATCHES_MAX))

    def merge(self, manifests: Sequence[Manifest], verified_version: int | None) -> Manifest:
        """See `Mergeable`."""
        whole = MANIFESTS.encode(manifests[-1].batch, map(MANIFESTS.decode, manifests))
        events = [one.oldest_event_at for one in manifests if one.oldest_event_at is not None]
        batches = tuple(manifest.batch for manifest in manifests)
        return replace(whole, merged=batches, oldest_event_at=min(events, default=None))

    def discard(self, payloads: Iterable[DataFiles]) -> int:
        return self.place.discard(staged_files(file for files in payloads for file in files))

    def unpublished(self) -> set[str]:
        """Return the paths of committed files that may still be staged."""
        journals = [self._read(query_id)[0] for query_id in self.place.journals()]
        found = [one for one in journals if one is not None and not one.is_published]
        return {path for journal in found for path in journal.files}

    def _check_staged(self, batch_id: int, files: StagedFiles) -> None:
        place = self.place
        for path, state in place.states(files).items():
            if state is FileState.TAKEN:
                raise TableChangedError(
                    f"Batch {batch_id} was not committed: {self.folder}/{path} exists already, and is not "
                    "overwritten. Move it away."
                )
            if state is not FileState.STAGED:
                why = f": {place.why_missing}" if place.why_missing else ""
                raise RetryableError(f"Batch {batch_id} was not committed: {path} is missing{why}.")

    def _read(self, query_id: str) -> tuple[Journal | None, StoredJournal | None]:
        stored = self.place.read_journal(query_id)
        if stored is None:
            return None, None
        try:
            return Journal.decode(stored.content), stored
        except (ValueError, KeyError, TypeError) as error:
            raise TableChangedError(
                f"The journal {self.place.journal_address(query_id)} is not what Penstock has written "
                f"({error!r}). Nothing was committed. Restore it from a backup."
            ) from error

    def _rolled_forward(self, query_id: str) -> tuple[Journal | None, StoredJournal | None]:
        """Publish the files of the last batch that are still staged, and write its markers."""
        for _ in range(_TRIES_MAX):
            journal, stored = self._read(query_id)
            if journal is None or journal.is_published:
                return journal, stored
            try:
                self.place.publish(journal.files)
                self.place.mark(journal.markers)
                journal = replace(journal, is_published=True)
                return journal, self.place.replace_journal(query_id, journal.encode(), stored)
            except JournalChangedError:
                """By another process that has published them, or by a repeated request of this one."""
            except TableChangedError:
                # Another process may have published the files, and their owner may have deleted them since.
                if self._read(query_id)[1] == stored:
                    raise
            except (RetryableError, CommitStateUnknownError) as error:
                raise CommitStateUnknownError(
                    f"Batch {journal.token.batch_id} is committed, but its files could not all be published "
                    f"in {self.folder}: {error} The next attempt continues."
                ) from error
        raise RetryableError(
            f"{self.place.journal_address(query_id)} changes all the time. Nothing was committed."
        )
