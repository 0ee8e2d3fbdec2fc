"""The file system of a Delta table: the local disk, or an object store configured by the Delta library's
options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem

from ...committers.delta.object_store import errors_of_the_system, open_object_store
from ..local_path import local_path
from ..parquet.objects import Parts
from ..parquet.uploads import PART_BYTES

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class StorageFormat:
    """What formats of tables with storage options and partition columns have in common."""

    __slots__ = ()
    partition_by: tuple[str, ...]

    @property
    def is_partitioned(self) -> bool:
        return bool(self.partition_by)

    def open_filesystem(self, location: str, storage_options: dict[str, str]) -> tuple[FileSystem, str]:
        return open_filesystem(location, storage_options)


def open_filesystem(table_uri: str, storage_options: dict[str, str]) -> tuple[FileSystem, str]:
    """The file system of the table, and the table's root in it. Runs on driver and executors.

    Object stores are accessed through the Delta library, so that `storage_options` have the same meaning for
    data files as for commits. There the root is empty, because the file system starts at the table.
    """
    path = local_path(table_uri)
    if path is not None:
        return LocalFileSystem(), path
    from deltalake.fs import DeltaStorageHandler

    handler = DeltaStorageHandler(table_uri, options=storage_options)
    store = open_object_store(table_uri, storage_options)
    return (PyFileSystem(handler) if store is None else _DeltaFileSystem(handler, store)), ""


class _DeltaFileSystem(PyFileSystem):  # type: ignore[misc]
    """The Delta library's file system, which holds the GIL while it waits and takes three requests per
    file.

    So small and new files (see `Objects`) are written by the client that is also used for the log, which
    avoids both.
    """

    def __init__(self, handler: object, store: ObjectStore) -> None:
        super().__init__(handler)
        self._store = store

    def create(self, path: str, content: memoryview) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with errors_of_the_system():
            try:
                self._store.put(path, content, mode="create")
            except AlreadyExistsError:
                if bytes(self._store.get(path).bytes()) != content:
                    raise FileExistsError(path) from None
                return False  # most likely a retry after a lost response
        return True

    def create_in_parts(self, path: str) -> Parts:
        import obstore

        with errors_of_the_system():
            try:
                self._store.head(path)
            except FileNotFoundError:
                return obstore.open_writer(self._store, path, buffer_size=PART_BYTES, max_concurrency=1)
        raise FileExistsError(path)

    def read(self, path: str) -> pa.Buffer:
        with errors_of_the_system():
            return pa.py_buffer(self._store.get(path).bytes())

    def delete(self, path: str) -> None:
        with errors_of_the_system():
            self._store.delete(path)
