"""Where the bytes of new data files go. The local disk is here, object stores are in `uploads.py`."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pyarrow as pa
from pyarrow.fs import FileType, LocalFileSystem

from ...committers.errors import RetryableError

FSYNC_THREADS = 8


class NewFiles(Protocol):
    """The files that one task attempt makes: none of them was there before. Runs on executors.

    Paths are relative to the data files' root. Not to be used by two threads at a time. An error may come
    with a later call than the one that it is of, with `finish` at the latest: that of the storage, or the
    one of `exists_already`.
    """

    @property
    def on_their_way_bytes(self) -> int:
        """In memory, of what is being sent."""
        ...

    def open(self, path: str) -> pa.NativeFile:
        """A new file."""
        ...

    def waiting_bytes(self, size_bytes: int) -> int:
        """In memory, of an open file that has so many bytes, about."""
        ...

    def wait_for_one(self) -> None:
        """Until there is less on its way than now, if anything is."""
        ...

    def finish(self) -> None:
        """Until all files survive a loss of power. All are closed."""
        ...

    def delete_all(self) -> None:
        """All files so far. What is written to those that are open goes nowhere, once they are closed.

        Never raises: what cannot be deleted is an orphan.
        """
        ...


def exists_already(path: str) -> RetryableError:
    return RetryableError(
        f"The file {path} exists already; another task attempt has written under the same ids. Nothing was "
        "overwritten. Start the query again: its run id makes new names."
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
        return self._filesystem.open_output_stream(full_path)

    def waiting_bytes(self, size_bytes: int) -> int:
        return 0

    def wait_for_one(self) -> None:
        pass

    def finish(self) -> None:
        """A durable manifest must never outlive its files, nor the directories that name them."""
        directories = sorted({name for path in self._paths for name in _ancestors(path)}, reverse=True)
        with ThreadPoolExecutor(FSYNC_THREADS) as threads:  # a journal writes many at little more cost
            for names in (self._paths, directories):
                list(threads.map(lambda name: _fsync(posixpath.join(self._root, name)), names))

    def delete_all(self) -> None:
        for path in self._paths:
            with contextlib.suppress(Exception):
                self._filesystem.delete_file(posixpath.join(self._root, path))


def _ancestors(path: str) -> Iterable[str]:
    while path:
        path = posixpath.dirname(path)
        yield path


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
