"""Publishes data files in a folder of the local disk.

Tasks write into a staging folder beside the table. The commit replaces one small file per query, the journal,
which has the token and lists the files of the last batch; then it renames these files into the table. A
process that dies in between leaves the rest to the next one that reads the token: it finishes the renames.
"""

from __future__ import annotations

import fcntl
import json
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from ..contract import (
    AlreadyCommitted,
    CheckToken,
    Committed,
    DataFiles,
    Manifest,
    Outcome,
    Token,
)
from ..crash_points import reach
from ..deletion import DeletionGuard
from ..errors import CommitStateUnknownError, RetryableError, TableChangedError
from ..file_manifests import FileManifests
from ..token_check import is_committed

KIND = "files"
BATCHES_MAX = 1000
"""Maximum number of batches in one delivery."""
MANIFESTS = FileManifests(KIND)


def staging_of(folder: str) -> str:
    """Return the staging folder of a table: beside it, so that no reader of the table lists it."""
    parent, name = posixpath.split(folder)
    return posixpath.join(parent, f".{name}.penstock")


@dataclass(frozen=True, slots=True)
class _Journal:
    """The last batch of a query, and its files, relative to the table."""

    token: Token
    files: tuple[str, ...]
    is_published: bool = False
    """True: all files are in their places, so that their owner may delete them again."""


@dataclass(frozen=True, slots=True)
class FilesCommitter:
    """See `PayloadCommitter`. Keeps nothing between two calls."""

    folder: str

    def token(self, query_id: str) -> Token | None:
        """Return the last batch of the query, after all its files are in their places."""
        if not self._journal_path(query_id).exists():
            return None
        with self._lock():
            return self._rolled_forward(query_id)

    def missing(self, manifest: Manifest) -> Sequence[str]:
        return [
            file.path
            for file in MANIFESTS.decode(manifest)
            if not self._staged(file.path).exists() and not self._final(file.path).exists()
        ]

    def commit(self, manifest: Manifest, check_token: CheckToken = lambda _: None) -> Outcome:
        batch = manifest.batch
        files = tuple(file.path for file in MANIFESTS.decode(manifest))
        with self._lock():
            token = self._rolled_forward(batch.stream.query_id)
            if is_committed(manifest, token, f"folder {self.folder}"):
                return AlreadyCommitted()
            check_token(token)
            for path in files:
                if not self._staged(path).exists():
                    raise RetryableError(f"Batch {batch.batch_id} was not committed: {path} is missing.")
                if self._final(path).exists():
                    raise TableChangedError(
                        f"Batch {batch.batch_id} was not committed: {self._final(path)} exists already, and "
                        "is not overwritten. Move it away."
                    )
            reach("commit.start", batch.batch_id)
            self._write_journal(batch.stream.query_id, _Journal(Token(batch.batch_id, batch.digest), files))
            reach("commit.landed", batch.batch_id)
            self._rolled_forward(batch.stream.query_id)
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
        return self.delete_staged(file.path for files in payloads for file in files)

    def delete_staged(self, paths: Iterable[str]) -> int:
        """Delete staged files; return how many there were. Published ones are elsewhere."""
        staging = staging_of(self.folder)
        deleted = 0
        for path in DeletionGuard([staging]).allowed_below(staging, paths):
            with suppress(FileNotFoundError):
                self._staged(path).unlink()
                deleted += 1
        return deleted

    def unpublished(self) -> set[str]:
        """Return the paths of committed files that may still be staged."""
        names = [path.stem for path in Path(staging_of(self.folder)).glob("*.journal")]
        journals = [journal for journal in map(self._read_journal, names) if journal is not None]
        return {path for journal in journals if not journal.is_published for path in journal.files}

    def _staged(self, path: str) -> Path:
        return Path(staging_of(self.folder), path)

    def _final(self, path: str) -> Path:
        return Path(self.folder, path)

    def _journal_path(self, query_id: str) -> Path:
        return self._staged(f"{query_id}.journal")

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Exclude other processes, until the block or the process ends."""
        with self._staged(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _read_journal(self, query_id: str) -> _Journal | None:
        path = self._journal_path(query_id)
        try:
            content = json.loads(path.read_text())
            token = Token(int(content["batch_id"]), str(content["digest"]))
            return _Journal(token, tuple(map(str, content["files"])), bool(content["published"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise TableChangedError(
                f"The journal {path} is not what Penstock has written ({error!r}). Nothing was committed. "
                "Restore it from a backup."
            ) from error

    def _write_journal(self, query_id: str, journal: _Journal) -> None:
        """Replace the journal. This is the commit."""
        path = self._journal_path(query_id)
        content = {
            "batch_id": journal.token.batch_id,
            "digest": journal.token.digest,
            "files": journal.files,
            "published": journal.is_published,
        }
        new = path.with_suffix(".next")
        try:
            with new.open("w") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
            _sync(path.parent)
        except OSError as error:
            if self._read_journal(query_id) == journal:
                return
            raise RetryableError(
                f"Batch {journal.token.batch_id} was not committed: {path} could not be written ({error})."
            ) from error

    def _rolled_forward(self, query_id: str) -> Token | None:
        """Move the files of the last batch that are still staged to their places."""
        journal = self._read_journal(query_id)
        if journal is None:
            return None
        if not Path(self.folder).is_dir():
            raise TableChangedError(
                f"The folder {self.folder} no longer exists: it was dropped or moved while the stream used "
                "it. Nothing was committed. Restore it, or start the query with a new checkpoint and delete "
                f"{staging_of(self.folder)}."
            )
        if journal.is_published:
            return journal.token
        try:
            for path in journal.files:
                self._publish(path)
            self._write_journal(query_id, replace(journal, is_published=True))
        except (OSError, RetryableError) as error:
            raise CommitStateUnknownError(
                f"Batch {journal.token.batch_id} is committed, but its files could not all be renamed into "
                f"{self.folder}: {error}. The next attempt continues."
            ) from error
        return journal.token

    def _publish(self, path: str) -> None:
        staged, final = self._staged(path), self._final(path)
        if staged.exists() == final.exists():
            what = "is the file of another writer" if final.exists() else f"is missing, as is {staged}"
            raise TableChangedError(
                f"A file of a committed batch cannot be published: {final} {what}. "
                "Move it away, or restore it."
            )
        if final.exists():
            return
        final.parent.mkdir(parents=True, exist_ok=True)
        staged.rename(final)
        _sync(final.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
