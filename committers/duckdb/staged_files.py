"""The rows of tasks for a DuckDB table: Parquet files in a folder beside the database.

Only one process has a DuckDB file open, so tasks cannot write into it. A file takes the place of a staging
table: its `schema` is the id of the query, which is the name of its folder. Importable on executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from ..cleaning import regular_files
from ..database.staging import StagingComment, StagingName, StagingTable
from ..errors import ManifestCorruptError

ENDING = ".parquet"
UNFINISHED = ".part"
"""Ending of a file that its task is writing."""
OPEN_ATTEMPTS = 10


def relative_path(staged: StagingTable) -> str:
    """The path of the file in the staging folder.

    Raises:
        ManifestCorruptError: the manifest names a file of another folder.
    """
    if "/" in staged.path or staged.schema in ("", ".", ".."):
        raise ManifestCorruptError(f"{staged.path!r:.100} is no file of the staging folder.")
    return f"{staged.schema}/{staged.name}{ENDING}"


def exist(folder: str, staged: Sequence[StagingTable]) -> list[bool]:
    return [Path(folder, relative_path(one)).is_file() for one in staged]


def delete(folder: str, staged: Sequence[StagingTable]) -> int:
    """Delete the existing ones among these files, and folders that are empty then; return the number of
    files.

    Raises:
        OSError: one cannot be deleted.
    """
    deleted = 0
    for one in staged:
        path = Path(folder, relative_path(one))
        for file in (path, path.with_suffix(UNFINISHED)):
            with suppress(FileNotFoundError):
                file.unlink()
                deleted += 1
    for empty in (*{Path(folder, one.schema) for one in staged}, Path(folder)):
        with suppress(OSError):  # there are other files, or another process has deleted it
            empty.rmdir()
    return deleted


def listed(folder: str) -> Iterator[tuple[str, str, int, str]]:
    """Yield folder, name, size and comment of all files of tasks, see `Dialect.staging_comments`."""
    for path in Path(folder).glob("*/*"):
        name = path.name.removesuffix(ENDING).removesuffix(UNFINISHED)
        with suppress(FileNotFoundError):
            found = path.stat()
            if StagingName.parse(name) is not None:
                written = datetime.fromtimestamp(found.st_mtime, timezone.utc)
                comment = str(StagingComment(written, path.parent.name))
                yield path.parent.name, name, found.st_size, comment


def open_new(folder: str, query_id: str, path: Path) -> BinaryIO:
    """Create a file that a task writes, and its folder. A commit may delete an empty folder at any time.

    Raises:
        OSError: it cannot be created.
    """
    for _ in range(OPEN_ATTEMPTS):
        Path(folder, query_id).mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return regular_files.open_new(path)
    return regular_files.open_new(path)


def publish(path: Path) -> None:
    """Make a complete file durable, with the name under which the commit finds it."""
    regular_files.sync(path)
    path.rename(path.with_suffix(ENDING))
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
        regular_files.sync(folder)
