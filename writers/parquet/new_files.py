"""Destinations for the bytes of new data files: the local disk here, object stores in `uploads.py`."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pyarrow as pa
from pyarrow.fs import FileType, LocalFileSystem

from ...committers.cleaning.regular_files import sync
from ...committers.errors import RetryableError

FSYNC_THREADS = 8


class NewFiles(Protocol):
    """Creates the files of one task attempt; none of them existed before. Runs on executors.

    Paths are relative to the root of the data files. Not safe for use by two threads at once. An error may be
    raised by a later call, at the latest by `finish`: an error of the storage, or the one from
    `exists_already`.
    """

    @property
    def on_their_way_bytes(self) -> int:
        """Size in memory of data that is being sent."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """Create a new file."""
        ...

    def waiting_bytes(self, size_bytes: int) -> int:
        """Approximate size in memory of an open file with this many bytes."""
        ...

    def wait_for_one(self) -> None:
        """Wait until less data is being sent than now."""
        ...

    def finish(self) -> None:
        """Wait until all files survive a power failure. All files must be closed."""
        ...

    def delete_all(self) -> None:
        """Delete all files so far. Data written to open files is discarded when they are closed.

        Never raises: files that cannot be deleted are orphans.
        """
        ...


def exists_already(path: str) -> RetryableError:
    return RetryableError(
        f"The file {path} already exists: another task attempt has used the same ids. Nothing was "
        "overwritten. Start the query again: its run id gives new names."
    )


class LocalFiles:
    """See `NewFiles`."""

    def __init__(self, root: str) -> None:
        self._filesystem = LocalFileSystem()
        self._root = root
        self._directories: set[str] = set()
        self._paths: list[str] = []
        self.on_their_way_bytes = 0

    def open(self, path: str) -> pa.NativeFile:
        full_path = posixpath.join(self._root, path)
        parent = posixpath.dirname(full_path)
        if parent not in self._directories:
            self._filesystem.create_dir(parent)
            self._directories.add(parent)
        if self._filesystem.get_file_info(full_path).type != FileType.NotFound:
            raise exists_already(path)
        self._paths.append(path)
        return self._filesystem.open_output_stream(full_path, compression=None)

    def waiting_bytes(self, size_bytes: int) -> int:
        return 0

    def wait_for_one(self) -> None:
        pass

    def finish(self) -> None:
        """A durable manifest must not outlive its files, nor the directories that contain them."""
        directories = sorted({name for path in self._paths for name in _ancestors(path)}, reverse=True)
        # with a journal, syncing many files costs little more
        with ThreadPoolExecutor(FSYNC_THREADS) as threads:
            for names in (self._paths, directories):
                list(threads.map(lambda name: sync(posixpath.join(self._root, name)), names))

    def delete_all(self) -> None:
        for path in self._paths:
            with contextlib.suppress(Exception):
                self._filesystem.delete_file(posixpath.join(self._root, path))


def _ancestors(path: str) -> Iterable[str]:
    while path:
        path = posixpath.dirname(path)
        yield path
