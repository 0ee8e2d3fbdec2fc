"""Metadata files of Iceberg tables in object stores: pyiceberg's, with fewer requests.

Each file has a unique name and never changes. So files that this process has recently written or read are
cached: for one commit, pyiceberg reads the table's metadata twice and requests the length of each manifest
that it has just written.
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
from typing import Any, cast

from pyarrow.fs import FileSystem
from pyiceberg.io import InputStream, OutputStream
from pyiceberg.io.pyarrow import PyArrowFile

from ..texts.safe_text import get_logger
from .object_store import IO_PREFIXES, open_object_store

logger = get_logger(__name__)

DELETING_THREADS = 4
KEPT_BYTES_MAX = 32 * 1024 * 1024
"""Size limit of all cached files."""
KEPT_FILE_BYTES_MAX = 4 * 1024 * 1024
"""Size limit of one cached file."""


class KeptFiles:
    """Contents of files that were read or written last, by location. Safe to share among threads."""

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
        properties: for file I/O, in pyiceberg's form
    """
    filesystem, path = open_object_store(location, properties)
    return ObjectStoreFile(location, path, filesystem, _kept, _access(properties))


def _access(properties: Mapping[str, Any]) -> str:
    """Cache key of the storage and its user: another endpoint has other files, and another user may not read
    them.
    """
    own = sorted((name, str(value)) for name, value in properties.items() if name.startswith(IO_PREFIXES))
    return hashlib.sha256(repr(own).encode()).hexdigest()


def delete_soon(locations: Sequence[str], properties: dict[str, Any]) -> None:
    """Delete files in the background. A file that cannot be deleted stays as an orphan."""
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
        """One request. pyiceberg's own implementation, with the file's `FileInfo`, takes two."""
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
        """The file exists once it is closed."""
        if not overwrite and self.exists():
            raise FileExistsError(f"Cannot create file, it already exists: {self.location}")
        return _Upload(self)

    def delete(self) -> None:
        self._kept.forget(self._kept_as)
        self._stored_in.delete_file(self._key)

    def upload(self, content: bytes) -> None:
        with super().create(overwrite=True) as stream:
            stream.write(content)
        self._kept.keep(self._kept_as, content)


class _Upload:
    """See `OutputStream`. An incomplete file is not sent."""

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

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._content.close()
