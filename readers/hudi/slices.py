"""The slices of a version of a Hudi table, and what a cleaner has deleted of them.

Readers list the files of a table, so a file that was deleted is not missed by itself: its rows would be left
out. So what the cleaner says that it deletes counts as listed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ...committers.delta.files import delta_files
from ...committers.hudi import avro
from ...committers.hudi.file_slices import FileSlice, newest_slices, replaced_groups
from ...committers.hudi.names import PARTITION_METADATA
from ...committers.hudi.storage import HudiStorage
from ...committers.hudi.timeline import Timeline

_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)


def slices_at(
    table_uri: str,
    storage: HudiStorage,
    storage_options: Mapping[str, str],
    timeline: Timeline,
    is_later: Callable[[str], bool],
) -> tuple[list[FileSlice], list[str]]:
    """Return the newest slices of all file groups, and the paths of those that were deleted.

    Args:
        timeline: without later commits than those of the version
        is_later: returns True for the instant of a cleaner that may have deleted files of the version

    Raises:
        TableNotSupportedError: a data file has no name of Hudi's form.
        ConfigurationError: a library is missing.
        OSError: the table cannot be read now.
    """
    there = {path: size for path, size, _ in delta_files(table_uri, dict(storage_options)).walk()}
    return slices_among(there, table_uri, storage, timeline, is_later)


def slices_among(
    there: Mapping[str, int],
    table_uri: str,
    storage: HudiStorage,
    timeline: Timeline,
    is_later: Callable[[str], bool],
) -> tuple[list[FileSlice], list[str]]:
    """Return the newest slices of the file groups of some partitions; those of others may be incomplete.

    Args:
        there: path and size of all files of these partitions

    Raises: as `slices_at`.
    """
    names = storage.names(timeline.layout.folder)
    cleaned = set(_cleaned(storage, timeline.layout.folder, names, is_later, table_uri)) - set(there)
    metadata = {posixpath.join(posixpath.dirname(path), PARTITION_METADATA) for path in cleaned}
    listed = [*there.items(), *((path, 0) for path in cleaned | (metadata - set(there)))]
    replaced = replaced_groups(storage, timeline)
    found = list(newest_slices(listed, timeline, replaced, table_uri).values())
    return found, sorted(one.path for one in found if one.path in cleaned)


def _cleaned(
    storage: HudiStorage,
    folder: str,
    names: Iterable[str],
    is_later: Callable[[str], bool],
    table_uri: str,
) -> Iterator[str]:
    """Yield the paths of files that cleaners delete or have deleted."""
    own: dict[str, dict[str, str]] = {}
    for name in names:
        times, _, action = name.partition(".")
        if action in ("clean", "clean.requested") and is_later(instant := times.partition("_")[0]):
            own.setdefault(instant, {})[action] = name
    for files in own.values():
        avro.check_library(table_uri)
        path = f"{folder}/{files.get('clean') or files['clean.requested']}"
        content = storage.read(path)
        if content is None:
            raise FileNotFoundError(f"{path} was archived meanwhile")
        try:
            metadata = avro.decode(content)
            yield from _of_metadata(metadata) if "clean" in files else _of_plan(metadata)
        except _DAMAGED as error:
            raise OSError(f"{path} cannot be read: {error!r}") from error


def _of_metadata(metadata: Mapping[str, Any]) -> Iterator[str]:
    """`HoodieCleanMetadata` of Hudi."""
    for partition, found in (metadata.get("partitionMetadata") or {}).items():
        for name in (*(found.get("deletePathPatterns") or ()), *(found.get("successDeleteFiles") or ())):
            yield posixpath.join(partition, posixpath.basename(name))


def _of_plan(plan: Mapping[str, Any]) -> Iterator[str]:
    """`HoodieCleanerPlan` of Hudi."""
    for partition, files in (plan.get("filePathsToBeDeletedPerPartition") or {}).items():
        for file in files:
            yield posixpath.join(partition, posixpath.basename(file["filePath"]))
    for partition, names in (plan.get("filesToBeDeletedPerPartition") or {}).items():
        yield from (posixpath.join(partition, posixpath.basename(name)) for name in names)
