"""What a completed commit of a Hudi table does to rows, as its statistics say.

A commit that adds rows may put them into a file group that is there: the new slice has the rows of the slice
before, and the new ones, whose `_hoodie_commit_time` is the instant of the commit. Hudi's writers do so with
small files, and keep that column of the rows that were there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...committers.errors import TableNotSupportedError
from ...committers.hudi.commit_metadata import decode
from ..scan import ScanFile
from ..streaming.commits import CommitKind

_WITH_STATISTICS = {
    *(f"{name}{end}" for name in ("INSERT", "BULK_INSERT", "UPSERT", "DELETE") for end in ("", "_PREPPED")),
    *("DELETE_PARTITION", "INSERT_OVERWRITE", "INSERT_OVERWRITE_TABLE"),
}
"""Operations of Hudi whose statistics say what they do to rows. Those of others are not looked at."""
_CLUSTERING = "CLUSTER"
"""It moves rows to other files, and changes none."""
_NO_INSTANT = "null"
"""In place of the instant of the slice before, if there is none."""
_COUNTS = ("numInserts", "numUpdateWrites", "numDeletes")


@dataclass(frozen=True, slots=True)
class AddedRows:
    """See `ScanFile.only`: the rows of a file that a commit has added."""

    instant: str
    rows: int
    """Their number, as the commit says."""


@dataclass(frozen=True, slots=True)
class WrittenSlice:
    """A data file that a commit has written."""

    path: str
    before: str | None
    """Instant of the slice before; None: the file begins a file group."""


@dataclass(frozen=True, slots=True)
class CommitContent:
    """What is read of a commit."""

    kind: CommitKind
    files: Sequence[ScanFile]
    """With new rows, in the order of their paths. Only if it adds rows alone."""
    extra: Mapping[str, str]
    written: Sequence[WrittenSlice] = ()
    """In the order of their paths. Only if it deletes or changes rows, and changes are read."""
    replaced: Sequence[tuple[str, str]] = ()
    """Partition and id of file groups that leave the table. As `written`."""

    @classmethod
    def of(cls, content: bytes, instant: str, shown: str, *, reads_changes: bool = False) -> CommitContent:
        """
        Args:
            content: of the completed instant
            shown: the commit, for messages
            reads_changes: also what it deletes and changes is read

        Raises:
            TableNotSupportedError: it has another form.
        """
        try:
            metadata = decode(content)
            kind = _kind(metadata)
            files = sorted(_files(metadata, instant), key=lambda file: file.path)
            is_read = kind is CommitKind.ADDS and metadata.get("operationType") != _CLUSTERING
            extra = metadata.get("extraMetadata") or {}
            if not reads_changes or kind is CommitKind.ADDS:
                return cls(kind, files if is_read else (), extra)
            written = sorted(map(_written, _stats(metadata)), key=lambda one: one.path)
            return cls(kind, (), extra, written, sorted(_replaced(metadata)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TableNotSupportedError(
                f"{shown} cannot be read: {error!r}. Nothing of it was read. Repair the timeline with the "
                "engine that has written it."
            ) from error


def _kind(metadata: Mapping[str, Any]) -> CommitKind:
    operation = metadata.get("operationType")
    stats = list(_stats(metadata))
    if operation == _CLUSTERING:
        return CommitKind.ADDS
    if stats and (operation not in _WITH_STATISTICS or not all(map(_has_counts, stats))):
        return CommitKind.CHANGES
    inserts, updates, deletes = (any(stat[name] for stat in stats) for name in _COUNTS)
    replaces = any((metadata.get("partitionToReplaceFileIds") or {}).values())
    if not (updates or deletes or replaces):
        return CommitKind.ADDS
    return CommitKind.CHANGES if updates or inserts else CommitKind.DELETES


def _has_counts(stat: Mapping[str, Any]) -> bool:
    return all(isinstance(stat.get(name), int) for name in _COUNTS)


def _files(metadata: Mapping[str, Any], instant: str) -> Iterator[ScanFile]:
    for stat in _stats(metadata):
        if stat.get("numInserts"):
            size_bytes = int(stat.get("fileSizeInBytes") or 0)
            yield ScanFile(stat["path"], size_bytes, only=AddedRows(instant, stat["numInserts"]))


def _written(stat: Mapping[str, Any]) -> WrittenSlice:
    """
    Raises:
        KeyError, TypeError: it does not say which slice is before.
    """
    path, before = stat["path"], stat["prevCommit"]
    if not (isinstance(path, str) and isinstance(before, str)):
        raise TypeError(f"path is {path!r}, prevCommit is {before!r}")
    return WrittenSlice(path, None if before == _NO_INSTANT else before)


def _replaced(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for partition, file_ids in (metadata.get("partitionToReplaceFileIds") or {}).items():
        yield from ((partition, file_id) for file_id in file_ids or ())


def _stats(metadata: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for stats in (metadata.get("partitionToWriteStats") or {}).values():
        yield from stats
