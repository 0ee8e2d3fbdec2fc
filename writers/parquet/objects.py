"""Data files as the objects of a store: created whole or in parts, read, deleted."""

from __future__ import annotations

import posixpath
from typing import Protocol, runtime_checkable

import pyarrow as pa
from pyarrow.fs import FileSystem


class Parts(Protocol):
    """A large new object, that is there once it is closed."""

    def write(self, data: bytes, /) -> object: ...

    def close(self) -> None: ...


@runtime_checkable
class Objects(Protocol):
    """Data files as the objects of a store, by paths relative to their root. Any thread may use it.

    Errors are those of the storage, as OSErrors.
    """

    def create(self, path: str, content: memoryview) -> bool:
        """A whole one. False if one of the same content may have been there.

        Raises:
            FileExistsError: there is another one, which stays as it is.
        """
        ...

    def create_in_parts(self, path: str) -> Parts:
        """
        Raises:
            FileExistsError: there is one, which stays as it is.
        """
        ...

    def read(self, path: str) -> pa.Buffer:
        """A whole one.

        Raises:
            FileNotFoundError: there is none.
        """
        ...

    def delete(self, path: str) -> None: ...


def objects_of(filesystem: FileSystem, root: str) -> Objects:
    """The file system's own way, if it has one."""
    return filesystem if isinstance(filesystem, Objects) else _ObjectsOfFileSystem(filesystem, root)


class _ObjectsOfFileSystem:
    """See `Objects`. Nothing is there before its stream closes, as with all object stores of Arrow's."""

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
        return self._filesystem.open_output_stream(full_path, buffer_size=_STREAM_BYTES)

    def read(self, path: str) -> pa.Buffer:
        with self._filesystem.open_input_file(posixpath.join(self._root, path)) as content:
            return content.read_buffer()

    def delete(self, path: str) -> None:
        self._filesystem.delete_file(posixpath.join(self._root, path))

    def _is_there(self, full_path: str) -> bool:
        """By one request. A look at its `FileInfo` takes two."""
        try:
            self._filesystem.open_input_file(full_path).close()
        except FileNotFoundError:
            return False
        return True


_STREAM_BYTES = 64 * 1024
"""Without such a buffer, file systems in Python get Arrow's buffers to write, and Delta's wants bytes."""
