"""Finds the files of an Iceberg table that only expiring snapshots need.

A snapshot refers to a manifest list, a manifest list to manifests, and a manifest to data and delete files.
Everything that a remaining snapshot also refers to is needed.

Checking manifests requires reading one small manifest list per snapshot. Checking data files would require
reading every manifest of the table. But a snapshot made by an append has all files of its parent, so a
snapshot that leads to a remaining one only by appends has no unneeded data files. All manifests are read only
if something was overwritten, deleted, compacted or rolled back.
"""

from __future__ import annotations

import json
import posixpath
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from ..errors import ManifestCorruptError
from ..file_tables.manifest import DECODED_BYTES_MAX
from .retention import is_append
from .table import snapshots_by_id

IsOwn = Callable[[str], bool]
"""Returns True if the data file at this location is among the table's own files."""


@dataclass(frozen=True, slots=True)
class ExpiredFiles:
    """Files that nothing needs once these snapshots are removed: full locations, in the form of the
    metadata.
    """

    snapshot_ids: tuple[int, ...]
    next_sequence_number: int
    """Next sequence number of the table at that time: later manifests were not checked."""
    data_files: tuple[str, ...]
    """Data and delete files."""
    manifests: tuple[str, ...]
    others: tuple[str, ...]
    """Manifest lists and statistics."""

    @property
    def paths(self) -> tuple[str, ...]:
        return self.data_files + self.manifests + self.others

    def encode(self) -> bytes:
        return zlib.compress(json.dumps({"version": 1, **asdict(self)}).encode())


def decode_expired(content: bytes) -> ExpiredFiles:
    """Decode the result of `encode`.

    Raises:
        ManifestCorruptError: the content is damaged, or larger than `DECODED_BYTES_MAX`.
    """
    try:
        fields = json.loads(_decompressed(content))
        if fields["version"] != 1:
            raise ValueError("unknown version")
        number = fields["next_sequence_number"]
        lists = [_checked(fields[name], kind) for name, kind in _LISTS.items()]
        snapshot_ids, data_files, manifests, others = lists
        if type(number) is not int:
            raise TypeError("a sequence number is not an integer")
    except (zlib.error, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise ManifestCorruptError(
            f"An expiry record in the manifest store cannot be read ({error}). None of its files were "
            "deleted. Restore the store from a backup."
        ) from error
    return ExpiredFiles(snapshot_ids, number, data_files, manifests, others)


_LISTS = {"snapshot_ids": int, "data_files": str, "manifests": str, "others": str}


def _decompressed(content: bytes) -> bytes:
    stream = zlib.decompressobj()
    text = stream.decompress(content, DECODED_BYTES_MAX)
    if not stream.eof:
        raise ValueError("it is truncated, or larger than any that Penstock writes")
    return text


def _checked(values: object, kind: type) -> tuple[Any, ...]:
    if type(values) is not list or not all(type(value) is kind for value in values):
        raise TypeError("a list has values of another type")
    return tuple(values)


# Before the snapshots expire ------------------------------------------------------------------------


def expired_files(
    io: FileIO, metadata: TableMetadata, expiring: Sequence[Snapshot], is_own: IsOwn
) -> ExpiredFiles:
    """Files that only `expiring` need.

    Raises:
        FileNotFoundError: a file that a remaining snapshot needs is missing.
    """
    expired_ids = {snapshot.snapshot_id for snapshot in expiring}
    kept = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in expired_ids]
    kept_manifests = manifests_of(io, kept)
    manifests = [path for path in manifests_of(io, expiring, may_be_gone=True) if path not in kept_manifests]
    others = metadata_files(metadata, expiring) - metadata_files(metadata, kept)
    return ExpiredFiles(
        snapshot_ids=tuple(expired_ids),
        next_sequence_number=metadata.next_sequence_number(),
        data_files=tuple(_unneeded_data_files(io, metadata, expiring, kept, kept_manifests, is_own)),
        manifests=tuple(manifests),
        others=tuple(sorted(others)),
    )


def _unneeded_data_files(
    io: FileIO,
    metadata: TableMetadata,
    expiring: Sequence[Snapshot],
    kept: Sequence[Snapshot],
    kept_manifests: dict[str, ManifestFile],
    is_own: IsOwn,
) -> list[str]:
    repeated = _repeated(metadata, kept)
    suspects = [snapshot for snapshot in expiring if snapshot.snapshot_id not in repeated]
    dropped = manifests_of(io, suspects, may_be_gone=True)
    paths: set[str] = set()
    for path, manifest in dropped.items():
        if path not in kept_manifests:
            with suppress(FileNotFoundError):
                paths.update(live_files(io, manifest))
    return sorted(filter(is_own, without_live(paths, io, kept_manifests.values())))


def _repeated(metadata: TableMetadata, kept: Iterable[Snapshot]) -> set[int]:
    """Snapshots that lead to a remaining one only by appends: the remaining one has all their files."""
    by_id = snapshots_by_id(metadata)
    repeated: set[int] = set()
    for snapshot in kept:
        one: Snapshot | None = snapshot
        while one is not None and is_append(one) and one.parent_snapshot_id not in repeated:
            one = by_id.get(one.parent_snapshot_id) if one.parent_snapshot_id is not None else None
            if one is not None:
                repeated.add(one.snapshot_id)
    return repeated


# Before the files are deleted -----------------------------------------------------------------------


def needed_again(io: FileIO, metadata: TableMetadata, expired: ExpiredFiles) -> set[str]:
    """Expired files that the table refers to again, because another writer has added them back.

    Manifests that existed when the files were found to be unneeded are not read again, unless they are needed
    again themselves.

    Raises:
        FileNotFoundError: a file that a snapshot needs is missing.
    """
    current = manifests_of(io, metadata.snapshots)
    before = set(expired.manifests)
    fresh = [
        manifest
        for path, manifest in current.items()  # format version 1 has no sequence numbers
        if path in before or not 0 < (manifest.sequence_number or 0) < expired.next_sequence_number
    ]
    data_files = set(expired.data_files)
    needed = data_files - without_live(data_files, io, fresh)
    return needed | before.intersection(current) | metadata_files(metadata, metadata.snapshots)


# References -----------------------------------------------------------------------------------------


def manifests_of(
    io: FileIO, snapshots: Iterable[Snapshot], *, may_be_gone: bool = False
) -> dict[str, ManifestFile]:
    """The manifests of all these snapshots, by location."""
    found: dict[str, ManifestFile] = {}
    expected = (FileNotFoundError,) if may_be_gone else ()
    for snapshot in snapshots:
        with suppress(*expected):
            found.update((manifest.manifest_path, manifest) for manifest in snapshot.manifests(io))
    return found


def live_files(io: FileIO, manifest: ManifestFile) -> Iterator[str]:
    """The data or delete files that the manifest adds or keeps."""
    return (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io, discard_deleted=True))


def without_live(paths: Iterable[str], io: FileIO, manifests: Iterable[ManifestFile]) -> set[str]:
    """The `paths` that no manifest lists.

    Compared by base name, so that different notations of one location do not matter.
    """
    left: dict[str, set[str]] = {}
    for path in paths:
        left.setdefault(posixpath.basename(path), set()).add(path)
    for manifest in manifests:
        if not left:
            break
        for path in live_files(io, manifest):
            left.pop(posixpath.basename(path), None)
    return set().union(*left.values())


def metadata_files(metadata: TableMetadata, snapshots: Iterable[Snapshot]) -> set[str]:
    """Manifest lists and statistics files of these snapshots."""
    snapshots = list(snapshots)
    ids = {snapshot.snapshot_id for snapshot in snapshots}
    statistics = [*metadata.statistics, *metadata.partition_statistics]
    named = {file.statistics_path for file in statistics if file.snapshot_id in ids}
    return named | {snapshot.manifest_list for snapshot in snapshots}
