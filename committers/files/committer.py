"""Publishes data files in a folder of the local disk or of an object store.

Tasks write files that no reader sees. The commit replaces one small file per query, the journal, which has
the token and lists the files of the last batch; then it publishes these files, writes the markers, and adds
the partitions to a catalog. A process that dies in between leaves the rest to the next one that reads the
token. `Place` has what differs between the storages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ..contract import AlreadyCommitted, Committed, Conflict, DataFiles, Manifest, Outcome, Token
from ..crash_points import reach
from ..errors import CommitStateUnknownError, ConfigurationError, RetryableError, TableChangedError
from ..protocol.failed_commit import failed_batch
from ..protocol.token_check import is_committed
from ..target import CheckToken
from ..texts.safe_text import get_logger
from .catalog import add_partitions
from .journal import Journal
from .local_folder import LocalFolder
from .manifests import MANIFESTS
from .object_folder import ObjectFolder, is_remote
from .partitions import NewPartitions
from .place import FileState, JournalChangedError, Place, StoredJournal
from .staged import StagedFiles, staged_files

logger = get_logger(__name__)

BATCHES_MAX = 1000
"""Maximum number of batches in one delivery."""
_TRIES_MAX = 10
"""Other processes that publish a batch at the same time as this one."""


def place_of(folder: str, storage_options: Mapping[str, str]) -> Place:
    """Return the place of a folder: an absolute path, or a URL such as `s3://bucket/prefix`."""
    return ObjectFolder(folder, storage_options) if is_remote(folder) else LocalFolder(folder)


@dataclass(frozen=True, slots=True)
class FilesCommitter:
    """See `PayloadCommitter`. Keeps nothing between two calls."""

    folder: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    catalog_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How to open the catalog of the partitions; as in pyiceberg."""

    @property
    def place(self) -> Place:
        return place_of(self.folder, self.storage_options)

    @property
    def adds_partitions(self) -> bool:
        """False: the query no longer wants the partitions of its last batch."""
        return True

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
        options = MANIFESTS.options_of(manifest)
        table = options.table if self.adds_partitions else None
        new = Journal(
            Token(batch.batch_id, batch.digest),
            staged_files(files),
            markers=options.markers.of(batch, files),
            partitions=None if table is None else NewPartitions.of(table, files),
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
        last = manifests[-1]
        payloads = map(MANIFESTS.decode, manifests)
        whole = MANIFESTS.encode_with(last.batch, payloads, MANIFESTS.options_of(last))
        return whole.merging(manifests)

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
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise TableChangedError(
                f"The journal {self.place.journal_address(query_id)} is not what Penstock has written "
                f"({error!r}). Nothing was committed. Restore it from a backup."
            ) from error

    def _rolled_forward(self, query_id: str) -> tuple[Journal | None, StoredJournal | None]:
        """Publish the last batch's files that are still staged, write its markers, add its partitions."""
        for _ in range(_TRIES_MAX):
            journal, stored = self._read(query_id)
            if journal is None or journal.is_published:
                return journal, stored
            left = f"its files could not all be published in {self.folder}"
            try:
                self.place.publish(journal.files)
                self.place.mark(journal.markers)
                if journal.partitions is not None and journal.partitions.partitions:
                    left = f"its partitions could not all be added to the table {journal.partitions.table}"
                    self._add_partitions(journal.token.batch_id, journal.partitions)
                journal = replace(journal, is_published=True)
                return journal, self.place.replace_journal(query_id, journal.encode(), stored)
            except JournalChangedError:
                """By another process that has published them, or by a repeated request of this one."""
            except TableChangedError:
                # Another process may have published the files, and their owner may have deleted them since.
                if self._read(query_id)[1] == stored:
                    raise
            except (RetryableError, CommitStateUnknownError, ConfigurationError) as error:
                raise CommitStateUnknownError(
                    f"Batch {journal.token.batch_id} is committed, but {left}: {error} The next attempt "
                    "continues."
                ) from error
        raise RetryableError(
            f"{self.place.journal_address(query_id)} changes all the time. Nothing was committed."
        )

    def _add_partitions(self, batch_id: int, new: NewPartitions) -> None:
        if not self.adds_partitions:
            logger.warning(
                "Batch %d of %s is committed, but up to %d partitions were not added to the table %s: the "
                "query no longer has the option catalogTable.",
                batch_id,
                self.folder,
                len(new.partitions),
                new.table,
            )
            return
        reach("partitions.start", batch_id)
        add_partitions(new, self.folder, self.catalog_properties)
        reach("partitions.added", batch_id)
