"""Data files as objects of a store: created whole or in parts, read, deleted."""

from __future__ import annotations

import posixpath
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyarrow.fs import FileSystem

from ...committers.cleaning.regular_files import open_input


class Parts(Protocol):
    """A new large object, which exists once it is closed."""

    def write(self, data: bytes, /) -> object: ...

    def close(self) -> None: ...


@runtime_checkable
class Objects(Protocol):
    """Data files as objects of a store, by paths relative to their root. Safe to share among threads.

    Errors of the storage are raised as OSError.
    """

    def create(self, path: str, content: memoryview) -> bool:
        """Create a whole object. Return False if an object with the same content may have existed before.

        Raises:
            FileExistsError: another object exists; it is not changed.
        """
        ...

    def create_in_parts(self, path: str) -> Parts:
        """
        Raises:
            FileExistsError: an object exists; it is not changed.
        """
        ...

    def read(self, path: str) -> pa.Buffer:
        """Read a whole object.

        Raises:
            FileNotFoundError: it does not exist.
        """
        ...

    def delete(self, path: str) -> None: ...


def objects_of(filesystem: FileSystem, root: str) -> Objects:
    """The file system's own implementation, if it has one."""
    return filesystem if isinstance(filesystem, Objects) else _ObjectsOfFileSystem(filesystem, root)


class _ObjectsOfFileSystem:
    """See `Objects`. An object exists once its stream is closed, as in all object stores of Arrow."""

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root

    def create(self, path: str, content: memoryview) -> bool:
        with self.create_in_parts(path) as stream:
            stream.write(content)
        return True

    def create_in_parts(self, path: str) -> pa.NativeFile:
        full_path = posixpath.join(self._root, path)
        if self._is_there(full_path):
            raise FileExistsError(full_path)
        return self._filesystem.open_output_stream(full_path, compression=None, buffer_size=_STREAM_BYTES)

    def read(self, path: str) -> pa.Buffer:
        with open_input(self._filesystem, posixpath.join(self._root, path)) as content:
            return content.read_buffer()

    def delete(self, path: str) -> None:
        self._filesystem.delete_file(posixpath.join(self._root, path))

    def _is_there(self, full_path: str) -> bool:
        """One request. Reading its `FileInfo` takes two."""
        try:
            self._filesystem.open_input_file(full_path).close()
        except FileNotFoundError:
            return False
        return True


_STREAM_BYTES = 64 * 1024
"""Without such a buffer, Python file systems get Arrow buffers to write, and Delta's needs bytes."""
