"""Metadata files of Iceberg tables in object stores, for pyiceberg: its own, with fewer requests.

Each has a name of its own and never changes. So what this process has written or read lately it does not ask
for again: in a commit, pyiceberg alone reads the table's metadata twice and asks for the length of each
manifest that it has just written.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import TracebackType
from typing import Any, cast

from pyarrow.fs import FileSystem
from pyiceberg.io import InputStream, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile

from ..safe_text import get_logger
from .object_store import IO_PREFIXES, open_object_store

logger = get_logger(__name__)

DELETING_THREADS = 4
KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Of all files that are kept."""
KEPT_FILE_BYTES_MAX = 4 * 1024 * 1024
"""Of one of them."""


class KeptFiles:
    """The contents of files that were read or written last, by location. Any thread may use it."""

    def __init__(self, bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, location: str) -> bytes | None:
        with self._lock:
            if location in self._contents:
                self._contents.move_to_end(location)
            return self._contents.get(location)

    def keep(self, location: str, content: bytes) -> None:
        if len(content) <= KEPT_FILE_BYTES_MAX:
            with self._lock:
                self._forget(location)
                self._contents[location] = content
                self._bytes += len(content)
                while self._bytes > self._bytes_max:
                    self._bytes -= len(self._contents.popitem(last=False)[1])

    def forget(self, location: str) -> None:
        with self._lock:
            self._forget(location)

    def _forget(self, location: str) -> None:
        self._bytes -= len(self._contents.pop(location, b""))


_kept = KeptFiles()


def object_store_file(location: str, properties: dict[str, Any]) -> ObjectStoreFile:
    """
    Args:
        properties: for file I/O, as pyiceberg names them
    """
    filesystem, path = open_object_store(location, properties)
    return ObjectStoreFile(location, path, filesystem, _kept, _access(properties))


def _access(properties: Mapping[str, Any]) -> str:
    """The storage and its user: another endpoint has other files, another user may not read them."""
    own = sorted((name, str(value)) for name, value in properties.items() if name.startswith(IO_PREFIXES))
    return hashlib.sha256(repr(own).encode()).hexdigest()


def delete_soon(locations: Sequence[str], properties: dict[str, Any]) -> None:
    """Beside the caller, who waits for none of it. A file that cannot be deleted stays, an orphan."""
    for location in locations:
        _threads(os.getpid()).submit(_try_to_delete, object_store_file(location, properties))


@lru_cache(maxsize=1)
def _threads(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(DELETING_THREADS, "penstock-delete")


def _try_to_delete(file: ObjectStoreFile) -> None:
    try:
        file.delete()
    except OSError as error:
        logger.debug("The old metadata file %s could not be deleted: %s", file.location, error)


class ObjectStoreFile(PyArrowFile):
    """A file in an object store."""

    def __init__(
        self, location: str, path: str, filesystem: FileSystem, kept: KeptFiles, access: str = ""
    ) -> None:
        super().__init__(location, path, filesystem)
        self._kept_as = f"{access} {location}"
        self._stored_in, self._key = filesystem, path
        self._kept = kept

    def __len__(self) -> int:
        content = self._kept.get(self._kept_as)
        return super().__len__() if content is None else len(content)

    def exists(self) -> bool:
        """By one request. pyiceberg's own, a look at the file's `FileInfo`, takes two."""
        try:
            super().open().close()
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        content = self._kept.get(self._kept_as)
        if content is None:
            with super().open() as stream:
                content = stream.read()
            self._kept.keep(self._kept_as, content)
        return cast(InputStream, io.BytesIO(content))

    def create(self, overwrite: bool = False) -> OutputStream:
        """It is there once it is closed."""
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        return _Upload(self)

    def delete(self) -> None:
        self._kept.forget(self._kept_as)
        self._stored_in.delete_file(self._key)

    def upload(self, content: bytes) -> None:
        with super().create(overwrite=True) as stream:
            stream.write(content)
        self._kept.keep(self._kept_as, content)


class _Upload:
    """See `OutputStream`. Not whole, not sent."""

    def __init__(self, file: ObjectStoreFile) -> None:
        self._file = file
        self._content = io.BytesIO()

    def write(self, data: bytes) -> int:
        return self._content.write(data)

    def tell(self) -> int:
        return self._content.tell()

    def close(self) -> None:
        if not self._content.closed:
            content = self._content.getvalue()
            self._content.close()
            self._file.upload(content)

    def __enter__(self) -> OutputStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._content.close()
