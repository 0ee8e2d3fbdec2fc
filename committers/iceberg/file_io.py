"""File I/O for Iceberg metadata on the local disk and in object stores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile, load_file_io

from .local_files import LocalFile, local_path
from .object_store import AZURE_SCHEMES

if TYPE_CHECKING:
    from .object_store_files import ObjectStoreFile

STORED_SCHEMES = ("s3", "s3a", "s3n", *AZURE_SCHEMES)
"""Properties in pyiceberg's form. For Azure, pyiceberg would use another library (adlfs) for metadata than
for data files (Arrow), with properties of its own.
"""


class TableFileIO(FileIO):
    """Handles files on the local disk, in S3 and in Azure; other files are left to pyiceberg's own file
    I/O.
    """

    def new_input(self, location: str) -> InputFile:
        file = self._file(location)
        return self._own(location).new_input(location) if file is None else file

    def new_output(self, location: str) -> OutputFile:
        file = self._file(location)
        return self._own(location).new_output(location) if file is None else file

    def delete(self, location: str | InputFile | OutputFile) -> None:
        name = location if isinstance(location, str) else location.location
        file = self._file(name)
        if file is None:
            self._own(name).delete(name)
        else:
            file.delete()

    def delete_soon(self, locations: Sequence[str]) -> None:
        """Delete unneeded files; in object stores in the background, since each file takes several
        requests.

        Raises:
            OSError: a file on the local disk cannot be deleted.
        """
        stored = [location for location in locations if _is_stored(location)]
        if stored:
            from .object_store_files import delete_soon

            delete_soon(stored, self.properties)
        for location in locations:
            if not _is_stored(location):
                with suppress(FileNotFoundError):
                    self.delete(location)

    def _file(self, location: str) -> LocalFile | ObjectStoreFile | None:
        if local_path(location) is not None:
            return LocalFile(location)
        if not _is_stored(location):
            return None
        from .object_store_files import object_store_file  # loads pandas if it is installed

        return object_store_file(location, self.properties)

    def _own(self, location: str) -> FileIO:
        """The file I/O that pyiceberg chooses."""
        return load_file_io({**self.properties, PY_IO_IMPL: ""}, location)


def _is_stored(location: str) -> bool:
    return location.partition("://")[0] in STORED_SCHEMES
