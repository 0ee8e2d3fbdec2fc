"""Plans the batches of a stream of a table's rows: where each one ends, and its files.

A stream begins with all rows of one version, and goes on with the rows that each commit adds. Where a batch
begins and ends is all that Spark stores of it, so its files follow from these two offsets and the table.
Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Generic

from ...committers.errors import ConfigurationError, TableNotSupportedError
from ..scan import ScanFile
from .commits import Commit, CommitKind, FileT, StreamedTable
from .positions import NOTHING, Offset, Position

EMPTY_COMMITS_MAX = 100
"""Commits and files without rows for the stream that are looked at again with each batch, before an empty
batch stores that they were read.
"""


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Where a new query begins. At most one is set; nothing: with all rows of the newest version."""

    version: int | None = None
    """With the rows that this version has added."""
    is_latest: bool = False
    """With the next commit."""
    at: datetime | None = None
    """With the first commit at or after this time."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one batch reads. One file is always read."""

    files: int | None = None
    file_bytes: int | None = None


NO_LIMITS = Limits()


class _Budget:
    """What a batch has of its limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._file_bytes = 0
        self.files = 0

    def take(self, more: Sequence[ScanFile]) -> bool:
        """Add files, all or none; return whether they fit. Those of the first step always do."""
        files = self.files + len(more)
        file_bytes = self._file_bytes + sum(file.size_bytes for file in more)
        files_max, bytes_max = self._limits.files, self._limits.file_bytes
        fits = (files_max is None or files <= files_max) and (bytes_max is None or file_bytes <= bytes_max)
        if more and self.files and not fits:
            return False
        self.files, self._file_bytes = files, file_bytes
        return True


@dataclass(frozen=True, slots=True)
class Skips:
    """Commits that a stream passes over."""

    deletes: bool = False
    changes: bool = False
    """Also those that delete."""

    def allow(self, kind: CommitKind) -> bool:
        """Return whether a commit that does not only add rows is passed over."""
        return self.changes or (self.deletes and kind is CommitKind.DELETES)


@dataclass(frozen=True, slots=True)
class _Step(Generic[FileT]):
    """Files that are in one batch, usually one or none, and the position after them."""

    position: Position
    files: Sequence[FileT] = ()


class StreamPlan(Generic[FileT]):
    """Plans batches.

    Args:
        table: its history
        now: returns the time
    """

    def __init__(
        self,
        table: StreamedTable[FileT],
        start: StreamStart,
        skips: Skips,
        now: Callable[[], datetime],
    ) -> None:
        self._table = table
        self._start = start
        self._skips = skips
        self._now = now
        self._until: int | None = None

    def stop_at_newest(self) -> None:
        """Let the stream end with what the table has now."""
        self._until = self._table.newest()

    def end_of_batch(self, start: Offset | None, limits: Limits = NO_LIMITS) -> Offset:
        """Return where the next batch ends; `start` if there are no rows for it.

        Args:
            start: where it begins; None: it is the first one of the query

        Raises:
            ConfigurationError: a commit is not for this stream, or no longer there; the message says which.
            TableNotSupportedError: the table cannot be read.
            RetryableError: the table cannot be read now.
        """
        newest = self._table.newest()
        until = newest if self._until is None else self._until
        if start is None:
            position = self._first_position(until)
        else:
            self._recall(start)
            position = start.position
        end, has_rows, passed = self._bounded(position, until, limits)
        if start is not None and not has_rows and passed <= EMPTY_COMMITS_MAX:
            return start
        begin = position if start is None else None
        return Offset(self._table.table_id, end, begin, self._table.order_of(end.version))

    def _bounded(self, position: Position, until: int, limits: Limits) -> tuple[Position, bool, int]:
        """Return the end of a batch, whether it has files, and how many steps without files."""
        budget, passed, end = _Budget(limits), 0, position
        steps = self._steps(position, until)
        while True:
            try:
                step = next(steps, None)
            except (ConfigurationError, TableNotSupportedError):
                if not budget.files:
                    raise
                break  # the rows before this commit first
            if step is None or not budget.take(selected := self._selected(step)):
                break
            passed += not selected
            end = step.position
        return end, budget.files > 0, passed

    def _selected(self, step: _Step[FileT]) -> list[ScanFile]:
        return [found for file in step.files if (found := self._table.select(file)) is not None]

    def files(self, start: Offset | None, end: Offset) -> Iterator[ScanFile]:
        """Yield the files of a batch. They are the same whenever, and in whatever process, it is repeated.

        Args:
            start: None: the batch is the first one of the query

        Raises: as `end_of_batch`.
        """
        for offset in (end,) if start is None else (start, end):
            self._recall(offset)
        position = end.start if start is None else start.position
        if position is None:
            raise self._wrong_offsets("the first batch has no beginning")
        if position == end.position:
            return
        self._table.newest()
        for step in self._steps(position, end.position.version):
            yield from self._selected(step)
            if step.position == end.position:
                return
        raise self._wrong_offsets(f"{position} is not before {end.position}")

    def _first_position(self, newest: int) -> Position:
        begin = self._start
        if begin.version is not None:
            return self._table.start_at(begin.version, newest)
        if begin.at is not None:
            return self._at_time(begin.at, newest)
        if begin.is_latest or newest == NOTHING:
            return Position(newest)
        return Position(newest, 0, is_snapshot=True)

    def _at_time(self, at: datetime, newest: int) -> Position:
        if at > self._now():
            raise ConfigurationError(
                f"startingTimestamp: {at.astimezone(timezone.utc).isoformat()} is in the future. Give a time "
                "that has passed. Nothing was read."
            )
        version = self._table.first_since(at, newest)
        return Position(newest) if version is None else Position(version, 0)

    def _steps(self, position: Position, until: int) -> Iterator[_Step[FileT]]:
        """Yield the files after a position, up to a version, in the order of the stream."""
        version = position.version
        if position.is_snapshot and position.files is not None:
            files = self._table.snapshot(version)
            yield from self._of_files(Position(version, position.files, is_snapshot=True), files)
        elif position.files is not None:
            yield from self._of_commit(position, self._table.commit(version))
        if version == until:
            return
        for commit in self._table.after(version, until):
            yield from self._of_commit(Position(commit.version, 0), commit)

    def _of_commit(self, position: Position, commit: Commit[FileT]) -> Iterator[_Step[FileT]]:
        if commit.other_schema:
            raise ConfigurationError(
                f"The schema has changed: {commit.shown} has other columns than the stream: "
                f"{commit.other_schema}. All rows before were read, and none of it. Start the query again, "
                "which then reads the columns that the table has now; or name in the option columns those "
                "that have not changed; or begin with a later version."
            )
        if commit.is_whole:
            yield _Step(Position(commit.version), commit.files)
        elif commit.kind is CommitKind.ADDS:
            yield from self._of_files(position, commit.files)
        elif self._skips.allow(commit.kind):
            yield _Step(Position(commit.version))
        else:
            raise self._refused(commit)

    def _of_files(self, position: Position, files: Sequence[FileT]) -> Iterator[_Step[FileT]]:
        """Yield the files from a position on. After the last one, the version was read."""
        first = position.files or 0
        for number, file in enumerate(files[first:], first + 1):
            is_last = number == len(files)
            is_snapshot = position.is_snapshot
            after = Position(position.version, None if is_last else number, is_snapshot and not is_last)
            yield _Step(after, (file,))
        if first >= len(files):
            yield _Step(Position(position.version))

    def _refused(self, commit: Commit[FileT]) -> ConfigurationError:
        if commit.kind is CommitKind.DELETES:
            does, options = "deletes rows", "ignoreDeletes=true passes over commits that only delete"
        else:
            does, options = (
                "changes rows (an update, a merge, an overwrite, or a rewrite of files with other rows)",
                "skipChangeCommits=true passes over such commits, also over the rows that they add",
            )
        return ConfigurationError(
            f"{commit.shown} {does}, and a stream of new rows has no way to tell. All rows before were read. "
            f"Set an option of the reader: {options}; changes=true reads changes with their kind. Or read "
            "another table, to which rows are only added."
        )

    def _recall(self, offset: Offset) -> None:
        """Let the table know what the checkpoint says of it, if it is the same table."""
        if offset.table != self._table.table_id:
            raise ConfigurationError(
                f"{self._table.name} is another table than the one that this query has read, says its "
                f"checkpoint: the id is {self._table.table_id}, and not {offset.table}. It was dropped and "
                "created again, or replaced. Nothing was read. Restore the table, or start with a new "
                "checkpoint."
            )
        self._table.recall(offset.position.version, offset.order)

    def _wrong_offsets(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"The offsets in the checkpoint of this query do not fit {self._table.name}: {why}. Nothing was "
            "read. Restore the table or the checkpoint, or start with a new checkpoint."
        )
