"""An entry of the log of a Delta table, as streams read it: what the commit does to rows.

Actions: `PROTOCOL.md` of Delta, "Actions". Files with `dataChange=false` have rows that were there before, as
those of a compaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from ...committers.delta.deletion_vectors import DeletionVector
from ...committers.delta.log_entry import ActiveFile
from ..streaming.change_feed import CHANGE_TYPE, COMMIT_TIME, COMMIT_VERSION
from ..streaming.commits import CommitKind
from .files import VectorDifference

CHANGE_FIELDS: Sequence[Mapping[str, Any]] = [
    {"name": CHANGE_TYPE, "type": "string", "nullable": True, "metadata": {}},
    {"name": COMMIT_VERSION, "type": "long", "nullable": True, "metadata": {}},
    {"name": COMMIT_TIME, "type": "timestamp", "nullable": True, "metadata": {}},
]
"""The columns of a change feed that the table does not have: those of Delta's own."""


@dataclass(frozen=True, slots=True)
class StreamFile:
    """A file of a stream, or some rows of it."""

    file: ActiveFile
    values: tuple[tuple[str, str | None], ...] = ()
    """Of columns of the change feed."""
    only: VectorDifference | None = None
    """Which rows; None: all that its vector does not delete."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What an entry of the log does."""

    added: tuple[ActiveFile, ...] = ()
    removed: Mapping[str, ActiveFile | None] = field(default_factory=dict)
    """By the path in the log; None: the entry does not say what is needed to read the file."""
    feed: tuple[ActiveFile, ...] = ()
    """Of the change data feed, if the table has one."""
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    at: datetime | None = None
    """When it was committed; None: unknown."""

    @classmethod
    def of(cls, content: bytes) -> Entry:
        """
        Raises:
            KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError: it is damaged.
        """
        added: list[ActiveFile] = []
        feed: list[ActiveFile] = []
        removed: dict[str, ActiveFile | None] = {}
        metadata = protocol = at = None
        for line in content.splitlines():
            if not line.strip():
                continue
            action = json.loads(line)
            metadata, protocol = action.get("metaData", metadata), action.get("protocol", protocol)
            if (file := action.get("add")) is not None and file["dataChange"]:
                added.append(ActiveFile.of(file))
            if (file := action.get("remove")) is not None and file["dataChange"]:
                is_known = "size" in file and "partitionValues" in file
                removed[str(file["path"])] = ActiveFile.of(file) if is_known else None
            if (file := action.get("cdc")) is not None:
                feed.append(ActiveFile.of(file))
            if (info := action.get("commitInfo")) is not None:
                at = _time(info.get("inCommitTimestamp", info.get("timestamp")))
        return cls(tuple(added), removed, tuple(feed), metadata, protocol, at)

    @property
    def kind(self) -> CommitKind:
        if not self.removed:
            return CommitKind.ADDS
        only_deletes = all(self._has_fewer_rows(file) for file in self.added)
        return CommitKind.DELETES if only_deletes else CommitKind.CHANGES

    def _has_fewer_rows(self, file: ActiveFile) -> bool:
        """Return True if the file was there before, and now has a vector that deletes more of its rows."""
        before = self.removed.get(file.logged_path)
        return before is not None and _deleted(before) <= _deleted(file)

    def changes(self, version: int) -> Iterator[StreamFile]:
        """Yield the rows that leave the table and those that it gets.

        Raises:
            ValueError: the entry does not say it.
        """
        if self.feed:
            yield from (StreamFile(file, self._values(version)) for file in self.feed)
            return
        added = {file.logged_path: file for file in self.added}
        for path, before in self.removed.items():
            if before is None:
                raise ValueError(f"the removal of {path} has no size or partition values")
            after = added.pop(path, None)
            if after is None:
                yield StreamFile(before, self._values(version, "delete"))
                continue
            for kind, more, less in (("delete", after, before), ("insert", before, after)):
                if more.vector is not None and more.vector != less.vector:
                    only = VectorDifference(more.vector, less.vector)
                    yield StreamFile(after, self._values(version, kind), only)
        yield from self.inserts(version, tuple(added.values()))

    def inserts(self, version: int, files: Sequence[ActiveFile]) -> Iterator[StreamFile]:
        """Yield the rows of files as new ones."""
        yield from (StreamFile(file, self._values(version, "insert")) for file in files)

    def _values(self, version: int, kind: str = "") -> tuple[tuple[str, str | None], ...]:
        """
        Args:
            kind: empty: the file has it
        """
        own = ((CHANGE_TYPE, kind),) if kind else ()
        at = None if self.at is None else self.at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # as partition values are
        return (*own, (COMMIT_VERSION, str(version)), (COMMIT_TIME, at))


def _deleted(file: ActiveFile) -> int:
    vector: DeletionVector | None = file.vector
    return 0 if vector is None else vector.rows


def _time(ms: object) -> datetime | None:
    if not isinstance(ms, int):
        return None
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)
