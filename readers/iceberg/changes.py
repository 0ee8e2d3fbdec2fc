"""What a snapshot of an Iceberg table changes: the rows that leave the table and those that it gets.

Found by comparing it with the snapshot before: which data files each of both has, and which delete files
apply to them. Columns: those of Iceberg's changelog view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import ManifestEntry
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import LongType, NestedField, StringType

from .files import DeleteDifference

CHANGE_TYPE, CHANGE_ORDINAL, COMMIT_SNAPSHOT = "_change_type", "_change_ordinal", "_commit_snapshot_id"
CHANGE_FIELDS = (
    NestedField(2147483543, CHANGE_TYPE, StringType(), required=False),
    NestedField(2147483542, CHANGE_ORDINAL, LongType(), required=False),
    NestedField(2147483541, COMMIT_SNAPSHOT, LongType(), required=False),
)
"""With the field ids that Iceberg reserves for them. The ordinal is the sequence number of the snapshot."""

INSERT, DELETE = "INSERT", "DELETE"


@dataclass(frozen=True, slots=True)
class StreamFile:
    """A data file and the delete files that apply to it, or some of its rows."""

    entry: ManifestEntry
    deletes: tuple[str, ...] = ()
    values: tuple[tuple[str, Any], ...] = ()
    """Of columns of the change feed."""
    only: DeleteDifference | None = None
    """Which rows; None: all that are not deleted."""


Live = Mapping[str, StreamFile]
"""The files of a snapshot, by location."""


def values_of(snapshot: Snapshot, kind: str) -> tuple[tuple[str, Any], ...]:
    return (
        (CHANGE_TYPE, kind),
        (CHANGE_ORDINAL, snapshot.sequence_number),
        (COMMIT_SNAPSHOT, snapshot.snapshot_id),
    )


def inserts(files: Iterable[StreamFile], snapshot: Snapshot) -> Iterator[StreamFile]:
    """Yield the rows of files as new ones."""
    values = values_of(snapshot, INSERT)
    yield from (StreamFile(file.entry, file.deletes, values) for file in files)


def changes(before: Live, after: Live, snapshot: Snapshot) -> Iterator[StreamFile]:
    """
    Args:
        before: the files of the snapshot before
        after: those of the snapshot
    """
    gone = values_of(snapshot, DELETE)
    for path, file in before.items():
        if path not in after:
            yield StreamFile(file.entry, file.deletes, gone)
            continue
        now = after[path]
        for values, more, less in ((gone, now, file), (values_of(snapshot, INSERT), file, now)):
            if set(more.deletes) - set(less.deletes):
                yield StreamFile(now.entry, (), values, DeleteDifference(more.deletes, less.deletes))
    yield from inserts([file for path, file in after.items() if path not in before], snapshot)
