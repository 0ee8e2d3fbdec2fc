"""Data files under a table's location, as the driver looks at them: there, gone, deleted.

Paths are relative to the location and unencoded, as in `DataFile.path`. Access is through the Delta
library's own object store, so that the same storage options reach the files that reach the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pyarrow.fs as pafs
from deltalake.fs import DeltaStorageHandler

_THREADS = 16
_CHUNK = 256
"""Paths asked for in one call."""


class TableFiles:
    """The files below one table's location. Runs on the driver and in the delivery process."""

    def __init__(self, table_uri: str, storage_options: Mapping[str, str]) -> None:
        self._fs = pafs.PyFileSystem(DeltaStorageHandler(table_uri, dict(storage_options)))

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that are gone, in the order given."""
        return [info.path for info in self._infos(paths) if info.type != pafs.FileType.File]

    def delete(self, paths: Iterable[str]) -> int:
        """Delete those that are there; the number deleted."""
        there = [info.path for info in self._infos(list(paths)) if info.type == pafs.FileType.File]
        with ThreadPoolExecutor(_THREADS) as pool:
            return sum(pool.map(self._delete, there))

    def walk(self) -> Iterator[tuple[str, int, datetime]]:
        """(path, size in bytes, time of modification in UTC) of every file below the location."""
        for info in self._fs.get_file_info(pafs.FileSelector("", recursive=True)):
            if info.type == pafs.FileType.File:
                yield info.path, info.size, info.mtime

    def _infos(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        chunks = [list(paths[start : start + _CHUNK]) for start in range(0, len(paths), _CHUNK)]
        if len(paths) <= _CHUNK:
            chunks = [[path] for path in paths]
        with ThreadPoolExecutor(_THREADS) as pool:
            return [info for infos in pool.map(self._fs.get_file_info, chunks) for info in infos]

    def _delete(self, path: str) -> bool:
        try:
            self._fs.delete_file(path)
        except FileNotFoundError:
            return False
        return True
