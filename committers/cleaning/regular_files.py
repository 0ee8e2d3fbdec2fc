"""Reads and writes small files of the local disk that lie at known paths, and makes files durable.

Others may have put something else there: opening a named pipe would wait for ever, a device never ends, and a
link leads to another file. Each function raises OSError for what is not a regular file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem


def open_input(filesystem: FileSystem, path: str) -> pa.NativeFile:
    """Open a file of any file system for reading."""
    check_input(filesystem, path)
    return filesystem.open_input_file(path)


def read_file(path: Path) -> bytes:
    with open_file(path) as file:
        return file.read()


def check_input(filesystem: FileSystem, path: str) -> None:
    if filesystem.type_name == "local":
        check_regular(path)


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading."""
    return os.fdopen(_opened(path, os.O_RDONLY), "rb")


def open_new(path: Path) -> BinaryIO:
    """Open a file to write it, empty. A link is not followed if it is the last path segment."""
    return os.fdopen(_opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW), "wb")


def sync(path: str | Path) -> None:
    """Make a file, or the entries of a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_regular(path: str | Path) -> None:
    """
    Raises:
        OSError: it is missing, or not a regular file.
    """
    _check(Path(path).stat(), path)


def _opened(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        _check(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(found: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
