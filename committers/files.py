"""Data files under a table's location, as the driver looks at them: there, gone, deleted.

Paths are relative to the location and unencoded, as in `DataFile.path`. Access is through the Delta
library's own object store, so that the same storage options reach the files that reach the table.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler

from .errors import RetryableError

_Answer = TypeVar("_Answer")

_THREADS = 16
_ASK_EACH_MAX = 256
"""Up to so many files are asked for one by one; more than that by listing their directories."""


class TableFiles:
    """The files below one table's location. Runs on the driver and in the delivery process."""

    def __init__(self, table_uri: str, storage_options: Mapping[str, str]) -> None:
        self._uri = table_uri
        self._fs = pafs.PyFileSystem(DeltaStorageHandler(table_uri, dict(storage_options)))

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
        wanted = list(paths)
        there = self._there(wanted)
        return sum(self._map(self._delete, [path for path in wanted if path in there]))

    def walk(self) -> Iterator[tuple[str, int, datetime]]:
        """(path, size in bytes, time of modification in UTC) of every file below the location."""
        for info in self._fs.get_file_info(pafs.FileSelector("", recursive=True)):
            if info.type == pafs.FileType.File:
                yield info.path, info.size, info.mtime

    def _there(self, paths: Sequence[str]) -> set[str]:
        if len(paths) <= _ASK_EACH_MAX:
            found = self._map(self._fs.get_file_info, paths)
        else:
            folders = sorted({posixpath.dirname(path) for path in paths})
            found = [info for infos in self._map(self._list, folders) for info in infos]
        return {info.path for info in found if info.type == pafs.FileType.File}

    def _list(self, folder: str) -> list[pafs.FileInfo]:
        infos: list[pafs.FileInfo] = self._fs.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        return infos

    def _delete(self, path: str) -> bool:
        try:
            self._fs.delete_file(path)
        except FileNotFoundError:
            return False
        return True

    def _map(self, ask: Callable[[str], _Answer], paths: Sequence[str]) -> list[_Answer]:
        try:
            with ThreadPoolExecutor(_THREADS) as pool:
                return list(pool.map(ask, paths))
        except OSError as error:
            raise RetryableError(
                f"The files below {self._uri} cannot be looked at: {error}. Nothing was committed. Check "
                "that the storage is reachable and the storage.* options, then start again."
            ) from error
