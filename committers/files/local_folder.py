"""A folder of the local disk. Tasks write into a staging folder beside it."""

from __future__ import annotations

import fcntl
import os
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from ..cleaning.cleanup import ListedFile
from ..cleaning.deletion import DeletionGuard
from ..cleaning.regular_files import open_new, read_file, sync
from ..error_causes import retryable
from ..errors import RetryableError, TableChangedError
from ..probing import Probe, local_probe
from .place import FileState, JournalChangedError, StoredJournal
from .staged import StagedFiles


def staging_of(folder: str) -> str:
    """Return the staging folder of a table: beside it, so that no reader of the table lists it."""
    parent, name = posixpath.split(folder)
    return posixpath.join(parent, f".{name}.penstock")


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """See `Place`. A published file is a staged one that was renamed."""

    folder: str
    why_missing: str = ""

    def exists(self) -> bool:
        return Path(self.folder).is_dir()

    def probe(self) -> Probe:
        return local_probe(self.folder)

    def open(self, *, create: bool) -> None:
        Path(staging_of(self.folder)).mkdir(parents=True, exist_ok=True)
        if create and not any(self.journals()):
            Path(self.folder).mkdir(exist_ok=True)

    def journal_address(self, query_id: str) -> str:
        return str(self._journal(query_id))

    def journals(self) -> Iterable[str]:
        return [path.stem for path in Path(staging_of(self.folder)).glob("*.journal")]

    def read_journal(self, query_id: str) -> StoredJournal | None:
        path = self._journal(query_id)
        try:
            content = read_file(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RetryableError(f"{path} could not be read: {error}. Nothing was committed.") from error
        if not self.exists():
            raise TableChangedError(
                f"The folder {self.folder} no longer exists: it was dropped or moved while the stream used "
                "it. Nothing was committed. Restore it, or start the query with a new checkpoint and delete "
                f"{staging_of(self.folder)}."
            )
        return StoredJournal(content, content.decode(errors="replace"))

    def replace_journal(self, query_id: str, content: bytes, replaced: StoredJournal | None) -> StoredJournal:
        path = self._journal(query_id)
        new = path.with_suffix(".next")
        try:
            with open_new(self._staged(".lock")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # until the block or the process ends
                if self.read_journal(query_id) != replaced:
                    raise JournalChangedError(f"{path} was replaced by another process.")
                _write(new, content)
                new.replace(path)
                sync(path.parent)
        except OSError as error:
            raise RetryableError(f"{path} could not be written: {error}.") from error
        return StoredJournal(content, content.decode())

    def remove_journal(self, query_id: str) -> None:
        path = self._journal(query_id)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise retryable(error)(f"{path} could not be removed: {error}.") from error

    def states(self, files: StagedFiles) -> Mapping[str, FileState]:
        self._check_below(files)
        return {path: self._state(path) for path in files}

    def publish(self, files: StagedFiles) -> None:
        self._check_below(files)
        try:
            for path in files:
                self._publish(path)
        except OSError as error:
            raise RetryableError(str(error)) from error

    def mark(self, markers: Mapping[str, str]) -> None:
        self._check_below(markers)
        try:
            for path, content in markers.items():
                final = Path(self.folder, path)
                final.parent.mkdir(parents=True, exist_ok=True)
                new = self._staged(f"{uuid.uuid4()}.marker")
                _write(new, content.encode())
                new.replace(final)
                sync(final.parent)
        except OSError as error:
            raise RetryableError(str(error)) from error

    def discard(self, files: StagedFiles) -> int:
        return self.delete_staged(files)

    def staged(self) -> Iterator[ListedFile]:
        staging = Path(staging_of(self.folder))
        for path in staging.rglob("penstock-*.*"):
            with suppress(FileNotFoundError):
                stat = path.stat()
                modified_at = datetime.fromtimestamp(stat.st_mtime, timezone.utc)
                yield ListedFile(path.relative_to(staging).as_posix(), stat.st_size, modified_at)

    def delete_staged(self, paths: Iterable[str]) -> int:
        staging = staging_of(self.folder)
        deleted = 0
        for path in DeletionGuard([staging]).allowed_below(staging, paths):
            with suppress(FileNotFoundError):
                self._staged(path).unlink()
                deleted += 1
        return deleted

    def paths(self) -> Iterator[str]:
        for parent, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if not name.startswith(("_", "."))]
            relative = os.path.relpath(parent, self.folder)
            yield from (
                posixpath.normpath(posixpath.join(relative, name))
                for name in names
                if not name.startswith(("_", "."))
            )

    def has(self, pattern: str) -> bool:
        return next(Path(self.folder).glob(pattern), None) is not None

    def _staged(self, path: str) -> Path:
        return Path(staging_of(self.folder), path)

    def _journal(self, query_id: str) -> Path:
        name, staging = f"{query_id}.journal", staging_of(self.folder)
        DeletionGuard([staging]).check_below(staging, [name])
        return self._staged(name)

    def _check_below(self, paths: Iterable[str]) -> None:
        """
        Raises:
            TableChangedError: one is not below the folder and its staging folder.
        """
        for root in (self.folder, staging_of(self.folder)):
            DeletionGuard([root]).check_below(root, paths)

    def _state(self, path: str) -> FileState:
        staged = self._staged(path).exists()  # first: a file that is renamed meanwhile is found twice
        if Path(self.folder, path).exists():
            return FileState.TAKEN if self._staged(path).exists() else FileState.PUBLISHED
        return FileState.STAGED if staged else FileState.MISSING

    def _publish(self, path: str) -> None:
        staged, final = self._staged(path), Path(self.folder, path)
        state = self._state(path)
        if state is FileState.STAGED:
            final.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # another process was faster
                staged.rename(final)
            sync(final.parent)
            state = self._state(path)
        if state is not FileState.PUBLISHED:
            what = (
                "is the file of another writer" if state is FileState.TAKEN else f"is missing, as is {staged}"
            )
            raise TableChangedError(
                f"A file of a committed batch cannot be published: {final} {what}. "
                "Move it away, or restore it."
            )


def _write(path: Path, content: bytes) -> None:
    with open_new(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
