"""Files below a location of an Iceberg table, accessed with the file systems that pyiceberg uses."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.fs as pafs

from ..changes.key_files import OpenFile
from ..cleaning.deletion import DeletionGuard, local_root
from ..file_tables.files import TableFiles
from ..probing import Probe, filesystem_probe, local_probe
from .local_files import local_path
from .object_store import open_object_store

DELETING_THREADS = 16


def iceberg_files(
    location: str, io_properties: Mapping[str, str], deletion_guard: DeletionGuard | None = None
) -> TableFiles:
    """The files below `location`: a local path, `file:` or an object store URL.

    Args:
        io_properties: for file I/O, in pyiceberg's form; may contain secrets
        deletion_guard: of the table, if files are to be deleted
    """
    properties = dict(io_properties)

    def open_location() -> pafs.FileSystem:
        path = local_path(location)
        if path is not None:
            return pafs.SubTreeFileSystem(str(path), pafs.LocalFileSystem())
        filesystem, stored_path = open_object_store(location, properties)
        return pafs.SubTreeFileSystem(stored_path, filesystem)

    def delete_many(paths: Sequence[str]) -> None:
        filesystem = open_location()

        def delete(path: str) -> None:
            with suppress(FileNotFoundError):
                filesystem.delete_file(path)

        with ThreadPoolExecutor(DELETING_THREADS) as threads:
            list(threads.map(delete, paths))

    return TableFiles(
        location,
        "the catalog.* options",
        open_location,
        delete_many=delete_many,
        deletion_guard=deletion_guard,
        local=local_root(location),
    )


def iceberg_probe(location: str, io_properties: Mapping[str, str]) -> Probe:
    """Return the probe of a location.

    Args:
        io_properties: see `iceberg_files`
    """
    root = local_root(location)
    if root is not None:
        return local_probe(root)
    return filesystem_probe(location, *open_object_store(location, dict(io_properties)))


def open_location(io_properties: Mapping[str, str]) -> OpenFile:
    """Return a function that opens a file by its location, anywhere. Raises as `TableFiles.opened`.

    Args:
        io_properties: see `iceberg_files`
    """

    @contextmanager
    def open_file(location: str) -> Iterator[pa.NativeFile]:
        folder, name = posixpath.split(location)
        with iceberg_files(folder, io_properties).opened(name) as file:
            yield file

    return open_file
