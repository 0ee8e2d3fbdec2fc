"""The log of a Delta table as single files: reads an entry, or creates one that does not exist yet.

The Delta library has no such calls: it lists and reads the log as a whole. Local disks are accessed directly.
S3 is accessed through `obstore`, the Python binding of the object store client inside the Delta library, with
the same options. For other storages there are no log files, and the library commits.

Runs on the driver and in the delivery process. Layout: `PROTOCOL.md` of Delta, "Delta Log Entries".
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..cleaning.regular_files import open_file, sync
from .object_store import errors_of_the_system, open_object_store

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult
    from obstore.store import ObjectStore

LOG = "_delta_log"


@dataclass(frozen=True, slots=True)
class LogFile:
    """Content of a log entry, and the identity of its file: a new file with the same name has another
    identity.
    """

    content: bytes
    identity: str


class LogFiles(Protocol):
    """The entries of one table's log, by version. Raises OSError if they cannot be read."""

    def read(self, version: int) -> LogFile | None:
        """None if it does not exist."""
        ...

    def identity(self, version: int) -> str | None:
        """Identity of the existing file; None if it does not exist."""
        ...

    def put(self, version: int, content: bytes) -> str:
        """Create the entry, durably and atomically; return its identity.

        Raises:
            FileExistsError: the entry exists. It may be this one: a client repeats a request if the response
                is lost.
            Exception: of the storage.
        """
        ...


def open_log_files(table_uri: str, storage_options: Mapping[str, str]) -> LogFiles | None:
    """None if only the Delta library can reach the log."""
    if is_local(table_uri):
        return LocalLogFiles(table_uri.removeprefix("file://"))
    store = open_object_store(table_uri, storage_options)
    return None if store is None else StoredLogFiles(table_uri, store)


def is_local(table_uri: str) -> bool:
    return "://" not in table_uri or table_uri.startswith("file://")


def entry_name(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


# Local disk ---------------------------------------------------------------------------------------


class LocalLogFiles:
    """See `LogFiles`. A new entry is a hard link to a file that is already on disk."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def read(self, version: int) -> LogFile | None:
        try:
            with open_file(self._path(version)) as file:
                return LogFile(file.read(), _identity(os.fstat(file.fileno())))
        except FileNotFoundError:
            return None

    def identity(self, version: int) -> str | None:
        try:
            return _identity(self._path(version).stat())
        except FileNotFoundError:
            return None

    def put(self, version: int, content: bytes) -> str:
        path = self._path(version)
        unfinished = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
        try:
            with unfinished.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            path.hardlink_to(unfinished)
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink()
        sync(path.parent)
        return _identity(path.stat())

    def _path(self, version: int) -> Path:
        return self._root / entry_name(version)


def _identity(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


# Object store -------------------------------------------------------------------------------------


class StoredLogFiles:
    """See `LogFiles`. A new entry is a conditional PUT (`If-None-Match: *`).

    Args:
        store: its root is the table's location
    """

    def __init__(self, table_uri: str, store: ObjectStore) -> None:
        self._uri = table_uri
        self._store = store

    def read(self, version: int) -> LogFile | None:
        with errors_of_the_system():
            try:
                found = self._store.get(entry_name(version))
            except FileNotFoundError:
                return None
            return LogFile(bytes(found.bytes()), _e_tag(found.meta))

    def identity(self, version: int) -> str | None:
        with errors_of_the_system():
            try:
                return _e_tag(self._store.head(entry_name(version)))
            except FileNotFoundError:
                return None

    def put(self, version: int, content: bytes) -> str:
        from obstore.exceptions import AlreadyExistsError

        try:
            return _e_tag(self._store.put(entry_name(version), content, mode="create"))
        except AlreadyExistsError as error:
            raise FileExistsError(f"{self._uri}/{entry_name(version)}") from error


def _e_tag(about: ObjectMeta | PutResult) -> str:
    e_tag = about["e_tag"]
    if not e_tag:
        raise OSError("the storage returns no ETag")
    return e_tag
