"""Plans the batches of a stream of a table's rows: where each one ends, and its files.

A stream begins with all rows of one version, and goes on with the rows that each commit adds. Where a batch
begins and ends is all that Spark stores of it, so its files follow from these two offsets and the table.
Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Generic

from ...committers.errors import ConfigurationError, TableNotSupportedError
from ..scan import ScanFile
from .commits import Commit, CommitKind, FileT, Part, StreamedTable, single_files
from .errors import other_schema
from .positions import NOTHING, Offset, Position

EMPTY_COMMITS_MAX = 100
"""Commits and files without rows for the stream that are looked at again with each batch, before an empty
batch stores that they were read.
"""
EMPTY_COMMITS_AGE = timedelta(hours=1)
"""The same for their age: what was read may expire."""


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
    at: datetime | None = None
    """When its commit was made."""


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
        self._stops = False
        self._until: int | None = None

    def stop_at_newest(self) -> None:
        """Let the stream end with what the table has when the next batch is planned."""
        self._stops, self._until = True, None

    def end_of_batch(self, start: Offset | None, limits: Limits = NO_LIMITS) -> Offset:
        """Return where the next batch ends; `start` if there are no rows for it.

        Args:
            start: where it begins; None: it is the first one of the query

        Raises:
            ConfigurationError: a commit is not for this stream, or no longer there; the message says which.
            TableNotSupportedError: the table cannot be read.
            RetryableError: the table cannot be read now.
        """
        if start is not None:
            self._recall(start)
        newest = self._table.newest()
        if self._stops and self._until is None:
            self._until = newest
        until = newest if self._until is None else self._until
        position = self._first_position(until) if start is None else start.position
        end, has_rows, may_wait = self._bounded(position, until, limits)
        if start is not None:
            return start if not has_rows and may_wait else self._offset(end)
        return replace(self._offset(end), start=position, start_order=self._table.order_of(position.version))

    def _offset(self, position: Position) -> Offset:
        return Offset(self._table.table_id, position, order=self._table.order_of(position.version))

    def _bounded(self, position: Position, until: int, limits: Limits) -> tuple[Position, bool, bool]:
        """Return the end of a batch, whether it has files, and whether steps without files may be looked at
        again.
        """
        budget, passed, end = _Budget(limits), 0, position
        oldest = self._now()
        steps = self._steps(position, Position(until))
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
            oldest = oldest if step.at is None else min(oldest, step.at)
            end = step.position
        may_wait = passed <= EMPTY_COMMITS_MAX and oldest >= self._now() - EMPTY_COMMITS_AGE
        return end, budget.files > 0, may_wait

    def _selected(self, step: _Step[FileT]) -> list[ScanFile]:
        return [found for file in step.files if (found := self._table.select(file)) is not None]

    def files(self, start: Offset | None, end: Offset) -> Iterable[ScanFile]:
        """Yield the files of a batch. Their rows are the same whenever, and in whatever process, it is
        repeated.

        Args:
            start: None: the batch is the first one of the query

        Raises: as `end_of_batch`.
        """
        return self._table.joined(self._files(start, end))

    def _files(self, start: Offset | None, end: Offset) -> Iterator[ScanFile]:
        for offset in (end,) if start is None else (start, end):
            self._recall(offset)
        position = end.start if start is None else start.position
        if position is None:
            raise self._wrong_offsets("the first batch has no beginning")
        if position == end.position:
            return
        self._table.newest()
        for step in self._steps(position, end.position):
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

    def _steps(self, position: Position, until: Position) -> Iterator[_Step[FileT]]:
        """Yield the files after a position, up to another one, in the order of the stream."""
        version = position.version
        if position.is_snapshot and position.files is not None:
            ends_here = until.is_snapshot and until.version == version
            parts = self._table.snapshot(version, position.files, until.files if ends_here else None)
            yield from _of_parts(version, parts, is_snapshot=True)
        elif position.files is not None:
            yield from self._of_commit(position, self._table.commit(version))
        if version == until.version:
            return
        for commit in self._table.after(version, until.version):
            yield from self._of_commit(Position(commit.version, 0), commit)

    def _of_commit(self, position: Position, commit: Commit[FileT]) -> Iterator[_Step[FileT]]:
        if commit.other_schema:
            raise other_schema(commit.shown, commit.other_schema)
        if commit.is_whole:
            yield _Step(Position(commit.version), commit.files, commit.at)
        elif commit.kind is CommitKind.ADDS:
            parts = single_files(commit.files, position.files or 0)
            yield from _of_parts(commit.version, parts, commit.at, is_snapshot=False)
        elif self._skips.allow(commit.kind):
            yield _Step(Position(commit.version), at=commit.at)
        else:
            raise self._refused(commit)

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
        if offset.start is not None:
            self._table.recall(offset.start.version, offset.start_order)
        self._table.recall(offset.position.version, offset.order)

    def _wrong_offsets(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"The offsets in the checkpoint of this query do not fit {self._table.name}: {why}. Nothing was "
            "read. Restore the table or the checkpoint, or start with a new checkpoint."
        )


def _of_parts(
    version: int, parts: Iterable[Part[FileT]], at: datetime | None = None, *, is_snapshot: bool
) -> Iterator[_Step[FileT]]:
    """Yield the files of a version. After the last ones, the version was read."""
    is_complete = False
    for part in parts:
        is_complete = part.end is None
        yield _Step(Position(version, part.end, is_snapshot and not is_complete), part.files, at)
    if not is_complete:
        yield _Step(Position(version), at=at)
