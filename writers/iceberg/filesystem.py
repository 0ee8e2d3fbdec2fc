"""The file system of an Iceberg table: the local disk, or an object store by Iceberg's properties."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from pyarrow.fs import FileSystem, LocalFileSystem, S3FileSystem


def open_iceberg_filesystem(location: str, properties: dict[str, str]) -> tuple[FileSystem, str]:
    """The file system that holds `location` of an Iceberg table, and its path in it. Runs anywhere.

    Object stores go through the Iceberg library's file I/O, so that `properties` mean the same for data
    files as for metadata. Iceberg's locations are no URLs: nothing in them is escaped.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or scheme == "file" or "/" in scheme:
        path = rest.removeprefix("//") if scheme == "file" and colon else location
        return LocalFileSystem(), str(Path.cwd() / path)
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, netloc, path = PyArrowFileIO.parse_location(location, properties)
    return _open_object_store(scheme, netloc, tuple(sorted(properties.items())), os.getpid()), path


@lru_cache(maxsize=16)
def _open_object_store(
    scheme: str, netloc: str, properties: tuple[tuple[str, str], ...], _process: int
) -> FileSystem:
    """One for each process and properties: connections stay open from batch to batch."""
    from pyiceberg.io import S3_RETRY_STRATEGY_IMPL
    from pyiceberg.io.pyarrow import PyArrowFileIO

    filesystem = PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc)
    if isinstance(filesystem, S3FileSystem) and S3_RETRY_STRATEGY_IMPL not in dict(properties):
        return _as_uploads_want_it(filesystem)
    return filesystem


def _as_uploads_want_it(filesystem: S3FileSystem) -> FileSystem:
    """The same, with options of Arrow's that the Iceberg library has no properties for.

    A file that is smaller than a part is one request then, not three; and of a larger one no more parts wait
    in memory than are told to. Options are those that pickle would keep: all but a retry strategy.
    """
    make, (options,) = filesystem.__reduce__()
    if "allow_delayed_open" in options:
        options["allow_delayed_open"] = True
    options["background_writes"] = False
    copy: FileSystem = make(options)
    return copy
