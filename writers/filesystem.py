"""Where data files go: the local disk, or an object store under the table library's own options."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem

FSYNC_THREADS = 8


def open_filesystem(table_uri: str, storage_options: dict[str, str]) -> tuple[FileSystem, str]:
    """The file system that holds the table and the table's root in it. Runs on driver and executors.

    Object stores go through the Delta library, so that `storage_options` mean the same for data files as
    for commits; there the root is empty, as that file system begins at the table.
    """
    path = local_path(table_uri)
    if path is not None:
        return LocalFileSystem(), path
    from deltalake.fs import DeltaStorageHandler

    return PyFileSystem(DeltaStorageHandler(table_uri, options=storage_options)), ""


def open_iceberg_filesystem(location: str, properties: dict[str, str]) -> tuple[FileSystem, str]:
    """The file system that holds `location` of an Iceberg table, and its path in it.

    Object stores go through the Iceberg library's file I/O, so that `properties` mean the same for data
    files as for metadata. Iceberg's locations are no URLs: nothing in them is escaped.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or scheme == "file" or "/" in scheme:
        path = rest.removeprefix("//") if scheme == "file" and colon else location
        return LocalFileSystem(), str(Path.cwd() / path)
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
    return PyArrowFileIO(properties).fs_by_scheme(scheme, netloc), path


def local_path(table_uri: str) -> str | None:
    """The absolute path of a table on the local disk; None for an object store."""
    parts = urlsplit(table_uri)
    if parts.scheme == "file":
        return unquote(parts.path)
    if "://" not in table_uri:
        return str(Path.cwd() / table_uri.removeprefix("file:"))
    return None


def make_durable(filesystem: FileSystem, root: str, paths: Iterable[str]) -> None:
    """Let closed files and the directories that name them survive a loss of power.

    A durable manifest must never outlive its files. An object store has done it when a file closes.
    """
    if not isinstance(filesystem, LocalFileSystem):
        return
    files = list(paths)
    directories = sorted({directory for path in files for directory in _ancestors(path)}, reverse=True)
    with ThreadPoolExecutor(FSYNC_THREADS) as threads:  # a journal writes many at once at little more cost
        for names in (files, directories):
            list(threads.map(lambda name: _fsync(posixpath.join(root, name)), names))


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
