"""An object store in memory, and the same store as pyarrow's file systems show it.

Contents are Python objects. `put` with `if_absent` is a conditional PUT: of two, one wins. What one client
has been told is done, every other one sees, as in S3 and on a local disk.
"""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from tests.simulation.scheduler import Scheduler, as_os_error


@dataclass(frozen=True, slots=True)
class StoredObject:
    content: Any
    size_bytes: int
    modified_at: float
    """Seconds since 1970, by the clock of the simulation."""


class ObjectStore:
    """Where data files, logs and manifests are.

    Args:
        is_remote: can requests arrive after their sender gave up? Not on a local disk
    """

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None:
        self.scheduler = scheduler
        self.is_remote = is_remote
        self.objects: dict[str, StoredObject] = {}
        self.ever: dict[str, StoredObject] = {}
        """Also what was deleted since."""
        """By path; read without a step at the end of a history."""

    def put(self, path: str, content: Any, *, size_bytes: int = 1, if_absent: bool = False) -> None:
        """
        Raises:
            FileExistsError: there is one, and `if_absent`.
            UnreachableError, DiskFullError: see `Scheduler.request`.
        """

        def act() -> None:
            if if_absent and path in self.objects:
                raise FileExistsError(path)
            self.objects[path] = self.ever[path] = StoredObject(content, size_bytes, self.scheduler.now)

        self.scheduler.request("put", act, about=path, remote=self.is_remote)

    def get(self, path: str) -> StoredObject:
        """
        Raises:
            FileNotFoundError: there is none.
            UnreachableError: see `Scheduler.request`.
        """
        found = self.scheduler.request("get", lambda: self.objects.get(path), about=path, writes=False)
        if found is None:
            raise FileNotFoundError(path)
        return found

    def head(self, path: str) -> StoredObject | None:
        """None if there is none."""
        return self.scheduler.request("head", lambda: self.objects.get(path), about=path, writes=False)

    def list(self, prefix: str) -> dict[str, StoredObject]:
        """All objects whose path begins so, in the order of their paths."""

        def act() -> dict[str, StoredObject]:
            return {path: self.objects[path] for path in sorted(self.objects) if path.startswith(prefix)}

        return self.scheduler.request("list", act, about=prefix, writes=False)

    def delete(self, path: str) -> bool:
        """Delete it; False if it is not there."""
        gone = self.scheduler.request(
            "delete", lambda: self.objects.pop(path, None), about=path, remote=self.is_remote
        )
        return gone is not None


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What product code asks of a `pyarrow.fs.FileInfo`."""

    path: str
    type: pafs.FileType
    size: int = 0
    mtime: datetime | None = None

    @property
    def base_name(self) -> str:
        return posixpath.basename(self.path)


class LocationFileSystem:
    """What product code asks of a `pyarrow.fs.FileSystem` whose root is a location in an object store."""

    type_name = "simulated"

    def __init__(
        self,
        store: ObjectStore,
        location: str,
        on_create: Callable[[str, bytes], None] = lambda _path, _content: None,
    ) -> None:
        """
        Args:
            on_create: hears of each file that is about to be created, by its path and content
        """
        self._store = store
        self._root = location.rstrip("/") + "/"
        self._on_create = on_create

    def get_file_info(self, asked: Any) -> Any:
        """Of one path, or of all files below a `FileSelector`'s folder."""
        with as_os_error():
            if isinstance(asked, pafs.FileSelector):
                return list(self._below(asked.base_dir))
            stored = self._store.head(self._root + asked)
        return FileInfo(asked, pafs.FileType.NotFound) if stored is None else _info(asked, stored)

    def _below(self, folder: str) -> Iterator[FileInfo]:
        prefix = self._root + (folder + "/" if folder else "")
        for path, stored in self._store.list(prefix).items():
            yield _info(path.removeprefix(self._root), stored)

    def open_input_file(self, path: str) -> Any:
        """A file of bytes."""
        with as_os_error():
            return pa.BufferReader(self._store.get(self._root + path).content)

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator[io.BytesIO]:
        sink = io.BytesIO()
        yield sink
        content = sink.getvalue()
        self._on_create(path, content)
        with as_os_error():
            self._store.put(self._root + path, content, size_bytes=len(content))

    def delete_file(self, path: str) -> None:
        with as_os_error():
            there = self._store.delete(self._root + path)
        if not there:
            raise FileNotFoundError(path)


def _info(path: str, stored: StoredObject) -> FileInfo:
    modified_at = datetime.fromtimestamp(stored.modified_at, timezone.utc)
    return FileInfo(path, pafs.FileType.File, stored.size_bytes, modified_at)
