"""Data files under a table's location, as the driver looks at them: there, gone, deleted.

Paths are relative to the location and unencoded, as in `DataFile.path`. Access is through the Delta
library's own object store, so that the same storage options reach the files that reach the table.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime

import pyarrow.fs as pafs
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from .delta.history import in_short
from .errors import RetryableError

_ASK_EACH_MAX = 32
"""Up to so many files are asked for one by one; more than that by listing their directories.

Never in threads: the library's file system keeps Python's lock while it waits.
"""


class TableFiles:
    """The files below one table's location. Runs on the driver and in the delivery process."""

    def __init__(self, table_uri: str, storage_options: Mapping[str, str]) -> None:
        self._uri = table_uri
        self._options = dict(storage_options)

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that are gone, in the order given.

        Raises:
            RetryableError: the storage cannot be asked now.
        """
        there = self._there(paths)
        return [path for path in paths if path not in there]

    def delete(self, paths: Iterable[str]) -> int:
        """Delete those that are there; the number deleted.

        Raises:
            RetryableError: the storage cannot be asked now.
        """
        there = self._there(list(paths))
        with self._filesystem() as filesystem:
            return sum(_delete(filesystem, path) for path in sorted(there))

    def walk(self) -> Iterator[tuple[str, int, datetime]]:
        """(path, size in bytes, time of modification in UTC) of every file below the location."""
        with self._filesystem() as filesystem:
            infos = filesystem.get_file_info(pafs.FileSelector("", recursive=True))
        return ((info.path, info.size, info.mtime) for info in infos if info.type == pafs.FileType.File)

    def _there(self, paths: Sequence[str]) -> set[str]:
        try:
            with self._filesystem() as filesystem:
                infos = _look(filesystem, paths)
        except TableNotFoundError:  # a local location that is gone, with all its files
            return set()
        there = {info.path for info in infos if info.type == pafs.FileType.File}
        return there.intersection(paths)

    @contextmanager
    def _filesystem(self) -> Iterator[pafs.FileSystem]:
        try:
            yield pafs.PyFileSystem(DeltaStorageHandler(self._uri, self._options))
        except OSError as error:
            raise RetryableError(
                f"The files below {self._uri} cannot be looked at: {in_short(error)}. Nothing was committed. "
                "Check the storage.* options and that the storage is reachable, then start again."
            ) from error


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
