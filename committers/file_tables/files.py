"""Checks, deletes and lists data files below a table's location, from the driver.

Paths are relative to the location and not encoded, as in `DataFile.path`. Each table format opens the
location in its own way, so that the same options apply to the files and to the table.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from ..cleaning.deletion import DeletionGuard
from ..cleaning.regular_files import open_new, sync
from ..error_causes import retryable
from ..errors import NEXT_TRY, TableChangedError

OpenLocation = Callable[[], "pafs.FileSystem | None"]
"""Opens a file system whose root is the location; None if a local location does not exist."""

DeleteMany = Callable[[Sequence[str]], None]
"""Deletes files that existed just before. Raises OSError if one cannot be deleted."""

_ASK_EACH_MAX = 32
"""Up to this many files are checked one by one; for more, their directories are listed.

Not in threads: Delta's file system holds the GIL while it waits.
"""


class MissingFileError(TableChangedError):
    """A file of the table is missing."""


class TableFiles:
    """The files below one table's location. Runs on the driver and in the delivery process.

    Args:
        place: the location for messages, without secrets
        options: the options to check, for messages, e.g. "the storage.* options"
        open_location: called for each operation
        in_short: shortens a storage error for messages
        delete_many: a faster way to delete several files, if there is one
        deletion_guard: of the table; None: all files below the location may be deleted
        local: path of the location on the local disk, if it is local
        create: creates a file, where the file system does not do it
    """

    def __init__(
        self,
        place: str,
        options: str,
        open_location: OpenLocation,
        in_short: Callable[[OSError], str] = str,
        delete_many: DeleteMany | None = None,
        deletion_guard: DeletionGuard | None = None,
        local: str | None = None,
        create: Callable[[str, bytes], object] | None = None,
    ) -> None:
        self._place = place
        self._options = options
        self._open = open_location
        self._in_short = in_short
        self._delete_many = delete_many
        self._deletion_guard = deletion_guard or DeletionGuard([place])
        self._local = local
        self._create = create

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Return the missing files among `paths`, in the same order.

        Raises:
            RetryableError: the storage cannot be reached now.
        """
        there = self._there(paths)
        return [path for path in paths if path not in there]

    def delete(self, paths: Iterable[str]) -> int:
        """Delete files that exist and are below the table's folders; return the number deleted.

        Raises:
            RetryableError: the storage cannot be reached now.
        """
        there = sorted(self._there(self._deletion_guard.allowed_below(self._place, paths)))
        with self._filesystem() as filesystem:
            if self._delete_many is None:
                return 0 if filesystem is None else sum(_delete(filesystem, path) for path in there)
            self._delete_many(there)
            return len(there)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; none if it does not exist.

        Raises:
            RetryableError: the storage cannot be reached now.
        """
        with self._filesystem() as filesystem:
            selector = pafs.FileSelector(folder, allow_not_found=True)
            infos = [] if filesystem is None else filesystem.get_file_info(selector)
        return [posixpath.basename(info.path) for info in infos if info.type == pafs.FileType.File]

    def walk(self) -> Iterator[tuple[str, int, datetime]]:
        """Yield (path, size in bytes, modification time in UTC) of every file below the location.

        Links on the local disk are not followed: their targets are not part of the table.

        Raises:
            RetryableError: the storage cannot be reached now.
        """
        if self._local is not None:
            with self._filesystem():
                return iter(list(_walk_local(self._local)))
        everything = pafs.FileSelector("", recursive=True, allow_not_found=True)
        with self._filesystem() as filesystem:
            infos = [] if filesystem is None else filesystem.get_file_info(everything)
        return ((info.path, info.size, info.mtime) for info in infos if info.type == pafs.FileType.File)

    @contextmanager
    def opened(self, path: str) -> Iterator[pa.NativeFile]:
        """Open a file to read it.

        Raises:
            MissingFileError: the file is missing.
            RetryableError: the storage cannot be reached now.
        """
        if self.missing([path]):
            raise MissingFileError(f"The file {path} below {self._place} is missing.")
        with self._filesystem() as filesystem:
            assert filesystem is not None
            with filesystem.open_input_file(path) as file:
                yield file

    def read(self, path: str) -> bytes:
        """Return the content of a small file. Raises as `opened`."""
        with self.opened(path) as file:
            content: bytes = file.read()
            return content

    def create(self, path: str, content: bytes) -> None:
        """Create a file with a name that nobody else uses, so that it survives a power failure.

        Raises:
            RetryableError: the storage cannot be reached now.
        """
        with self._filesystem() as filesystem:
            if self._local is not None:
                _create_local(Path(self._local), path, content)
            elif self._create is not None:
                self._create(path, content)
            elif filesystem is not None:
                with filesystem.open_output_stream(path) as file:
                    file.write(content)

    def _there(self, paths: Sequence[str]) -> set[str]:
        with self._filesystem() as filesystem:
            infos = [] if filesystem is None else _look(filesystem, paths)
        there = {info.path for info in infos if info.type == pafs.FileType.File}
        return there.intersection(paths)

    @contextmanager
    def _filesystem(self) -> Iterator[pafs.FileSystem | None]:
        try:
            yield self._open()
        except OSError as error:
            raise retryable(error)(
                f"The files below {self._place} cannot be listed or checked: {self._in_short(error)}. "
                f"Nothing was committed. Check {self._options} and that the storage is reachable. {NEXT_TRY}"
            ) from error


def _create_local(root: Path, path: str, content: bytes) -> None:
    created = root / path
    created.parent.mkdir(parents=True, exist_ok=True)
    with open_new(created) as file:
        file.write(content)
    sync(created)
    for folder in islice(created.parents, len(Path(path).parents)):
        sync(folder)


def _walk_local(root: str) -> Iterator[tuple[str, int, datetime]]:
    def on_error(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for folder, _, names in os.walk(root, onerror=on_error):
        for name in names:
            path = Path(folder, name)
            with suppress(FileNotFoundError):
                info = path.lstat()
                if stat.S_ISREG(info.st_mode):
                    modified_at = datetime.fromtimestamp(info.st_mtime, timezone.utc)
                    yield str(path.relative_to(root)), info.st_size, modified_at


def _look(filesystem: pafs.FileSystem, paths: Sequence[str]) -> list[pafs.FileInfo]:
    if len(paths) <= _ASK_EACH_MAX:
        return [filesystem.get_file_info(path) for path in paths]
    folders = sorted({posixpath.dirname(path) for path in paths})
    selectors = [pafs.FileSelector(folder, allow_not_found=True) for folder in folders]
    return [info for selector in selectors for info in filesystem.get_file_info(selector)]


def _delete(filesystem: pafs.FileSystem, path: str) -> bool:
    try:
        filesystem.delete_file(path)
    except FileNotFoundError:
        return False
    return True
