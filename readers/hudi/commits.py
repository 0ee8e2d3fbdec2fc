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
_COUNTS = ("numInserts", "numUpdateWrites", "numDeletes")


@dataclass(frozen=True, slots=True)
class AddedRows:
    """See `ScanFile.only`: the rows of a file that a commit has added."""

    instant: str
    rows: int
    """Their number, as the commit says."""


@dataclass(frozen=True, slots=True)
class CommitContent:
    """What is read of a commit."""

    kind: CommitKind
    files: Sequence[ScanFile]
    """With new rows, in the order of their paths. Only if it adds rows alone."""
    extra: Mapping[str, str]

    @classmethod
    def of(cls, content: bytes, instant: str, shown: str) -> CommitContent:
        """
        Args:
            content: of the completed instant
            shown: the commit, for messages

        Raises:
            TableNotSupportedError: it has another form.
        """
        try:
            metadata = decode(content)
            kind = _kind(metadata)
            files = sorted(_files(metadata, instant), key=lambda file: file.path)
            is_read = kind is CommitKind.ADDS and metadata.get("operationType") != _CLUSTERING
            return cls(kind, files if is_read else (), metadata.get("extraMetadata") or {})
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


def _stats(metadata: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for stats in (metadata.get("partitionToWriteStats") or {}).values():
        yield from stats
