"""Files below a Delta table, accessed with the Delta library's object store and its storage options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow.fs as pafs
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from ..cleaning.deletion import local_root
from ..file_tables.files import TableFiles
from .library import in_short
from .object_store import errors_of_the_system, open_object_store


def delta_files(table_uri: str, storage_options: Mapping[str, str]) -> TableFiles:
    """The files below a Delta table's location."""
    options = dict(storage_options)

    def open_location() -> pafs.FileSystem | None:
        try:
            return pafs.PyFileSystem(DeltaStorageHandler(table_uri, options))
        except TableNotFoundError:
            return None

    store = open_object_store(table_uri, options)

    def delete_many(paths: Sequence[str]) -> None:
        assert store is not None, "else one after the other"
        with errors_of_the_system():
            try:
                store.delete(paths)  # hundreds per request
            except FileNotFoundError:  # Azure: if one is missing
                for path in paths:
                    with suppress(FileNotFoundError):
                        store.delete(path)

    def create(path: str, content: bytes) -> None:
        assert store is not None, "else by the file system"
        with errors_of_the_system():
            store.put(path, content)

    return TableFiles(
        table_uri,
        "the storage.* options",
        open_location,
        in_short,
        None if store is None else delete_many,
        local=local_root(table_uri),
        create=None if store is None else create,
    )
