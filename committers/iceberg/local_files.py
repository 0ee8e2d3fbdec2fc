"""Files of Iceberg tables on the local disk, for pyiceberg, without Arrow.

pyiceberg's own file I/O loads pandas if it is installed: a third of a second in each process, and Spark ends
its Python processes after a minute without work.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from pyiceberg.io import InputFile, InputStream, OutputFile, OutputStream

from ..cleaning.regular_files import open_file


def local_path(location: str) -> Path | None:
    """The absolute path of a location; None if it is not on the local disk. Nothing in it is
    percent-encoded.
    """
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return Path(location).absolute()
    return Path(rest.removeprefix("//")) if scheme == "file" else None


class LocalFile(InputFile, OutputFile):
    """A file on the local disk."""

    @property
    def _path(self) -> Path:
        path = local_path(self.location)
        assert path is not None, "other schemes use another file I/O"
        return path

    def __len__(self) -> int:
        return self._path.stat().st_size

    def exists(self) -> bool:
        return self._path.is_file()

    def open(self, seekable: bool = True) -> InputStream:
        return cast(InputStream, open_file(self._path))

    def create(self, overwrite: bool = False) -> OutputStream:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return cast(OutputStream, self._path.open("wb" if overwrite else "xb"))

    def to_input_file(self) -> LocalFile:
        return self

    def delete(self) -> None:
        self._path.unlink()
