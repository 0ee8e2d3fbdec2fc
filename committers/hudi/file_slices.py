"""The data files that readers of a Hudi table see: of each file group the newest slice.

A file group is what has one file id in one partition. Each commit that rewrites it adds a slice, a file with
the instant of the commit in its name. Groups that clustering has replaced are named by the commit that has
replaced them, until they are deleted.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..errors import TableNotSupportedError
from .commit_metadata import decode
from .names import PARTITION_METADATA, file_id_of, instant_of
from .storage import HudiStorage
from .timeline import Timeline

_REPLACED = ".replacecommit"


@dataclass(frozen=True, slots=True)
class FileSlice:
    path: str
    instant: str
    size_bytes: int = 0

    @property
    def group(self) -> tuple[str, str]:
        """Partition and file id."""
        return posixpath.dirname(self.path), file_id_of(self.path)


def newest_slices(
    files: Iterable[tuple[str, int]], timeline: Timeline, replaced: frozenset[tuple[str, str]], table_uri: str
) -> Mapping[tuple[str, str], FileSlice]:
    """Return the slices that readers see, by file group.

    Args:
        files: path and size of all files of the table
        timeline: all of it; files of later instants are left out
        replaced: see `replaced_groups`

    Raises:
        TableNotSupportedError: a data file has no name of Hudi's form.
    """
    listed = list(files)
    partitions = {
        posixpath.dirname(path) for path, _ in listed if posixpath.basename(path) == PARTITION_METADATA
    }
    newest: dict[tuple[str, str], FileSlice] = {}
    for path, size_bytes in listed:
        if not path.endswith(".parquet") or posixpath.dirname(path) not in partitions:
            continue
        instant = instant_of(path)
        if instant is None:
            raise TableNotSupportedError(
                f"The Hudi table {table_uri} has the file {path}, whose name is not one of Hudi's data "
                "files, so its rows cannot be changed. Nothing was committed. Move the file elsewhere."
            )
        one = FileSlice(path, instant, size_bytes)
        if one.group in replaced or not (timeline.has(instant) or instant < timeline.first):
            continue
        if one.group not in newest or newest[one.group].instant < instant:
            newest[one.group] = one
    return newest


def replaced_groups(storage: HudiStorage, timeline: Timeline) -> frozenset[tuple[str, str]]:
    """Return the file groups that commits in the timeline have replaced by others.

    Raises:
        OSError: a commit cannot be read.
    """
    found = set[tuple[str, str]]()
    for _, name in timeline.commits:
        if name.endswith(_REPLACED):
            path = f"{timeline.layout.folder}/{name}"
            content = storage.read(path)
            if content is not None:  # else it was archived meanwhile, after the files were deleted
                found.update(_replaced_by(content, path))
    return frozenset(found)


def _replaced_by(content: bytes, path: str) -> Iterator[tuple[str, str]]:
    try:
        by_partition = decode(content).get("partitionToReplaceFileIds") or {}
        for partition, file_ids in by_partition.items():
            for file_id in file_ids or ():
                yield str(partition), str(file_id)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise OSError(f"{path} cannot be read: {error!r}") from error
