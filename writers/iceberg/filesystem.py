"""The file system of an Iceberg table: the local disk, or an object store configured by Iceberg's
properties.
"""

from __future__ import annotations

from pathlib import Path

from pyarrow.fs import FileSystem, LocalFileSystem

from ...committers.iceberg.object_store import open_object_store


def open_iceberg_filesystem(location: str, properties: dict[str, str]) -> tuple[FileSystem, str]:
    """The file system of `location`, and its path in it. Runs anywhere.

    Object stores are accessed through the Iceberg library's file I/O, so that `properties` have the same
    meaning for data files as for metadata. Iceberg's locations are not URLs: nothing in them is
    percent-encoded.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or scheme == "file" or "/" in scheme:
        path = rest.removeprefix("//") if scheme == "file" and colon else location
        return LocalFileSystem(), str(Path.cwd() / path)
    return open_object_store(location, properties)
