"""Commits of a table, as streams read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Generic, Protocol, TypeVar

from ..scan import ScanFile
from .positions import Order, Position

FileT = TypeVar("FileT")


class CommitKind(Enum):
    """What a commit does to rows."""

    ADDS = "adds"
    """It adds rows, or changes none: the files of a compaction have rows that were there before."""
    DELETES = "deletes"
    """It only deletes rows."""
    CHANGES = "changes"
    """It deletes rows and adds others."""


@dataclass(frozen=True, slots=True)
class Commit(Generic[FileT]):
    """A commit of a table."""

    version: int
    shown: str
    """The version of the table, for messages."""
    kind: CommitKind
    files: Sequence[FileT] = ()
    """With the new rows, in an order that never changes."""
    is_whole: bool = False
    """All files are in the same batch, whatever the limits: a row that was updated has rows in several, or
    the table does not keep the files as they are.
    """
    other_schema: str = ""
    """Why the rows do not fit the columns of the stream; empty if they do."""
    at: datetime | None = None
    """When it was made; None: unknown."""


@dataclass(frozen=True, slots=True)
class Part(Generic[FileT]):
    """Files of a version that are in the same batch."""

    end: int | None
    """`Position.files` after them; None: they are the last ones."""
    files: Sequence[FileT]


def single_files(files: Sequence[FileT], after: int = 0, until: int | None = None) -> Iterator[Part[FileT]]:
    """Yield files as parts of their own, which are numbered in their order.

    Args:
        files: all of the version
        after: yield those after this number …
        until: … up to this one; None: all
    """
    count = len(files)
    for end in range(after + 1, (count if until is None else min(until, count)) + 1):
        yield Part(None if end == count else end, files[end - 1 : end])


class StreamedTable(Protocol[FileT]):
    """The history of a table. Its methods read the storage, and raise `RetryableError` if that fails now, and
    `ConfigurationError` for a version that the table no longer has.
    """

    @property
    def table_id(self) -> str: ...

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def newest(self) -> int:
        """Return the newest version, `NOTHING` if there is none. In formats with `Order`: the last one of
        those that come after the recalled one, which may be older than that.

        Raises:
            ConfigurationError: there is another table in its place.
        """
        ...

    def first_since(self, at: datetime, until: int) -> int | None:
        """Return the first version at or after a time; None if all up to `until` are older.

        Raises:
            ConfigurationError: the table no longer knows which one was the first.
        """
        ...

    def start_at(self, version: int, until: int) -> Position:
        """Return the position before the rows that a version adds.

        Args:
            until: the newest version

        Raises:
            ConfigurationError: its commit is not there.
        """
        ...

    def order_of(self, version: int) -> Order:
        """Return the order of a version that one of the methods has returned."""
        ...

    def recall(self, version: int, order: Order) -> None:
        """Take what an offset says of a version that the table may have forgotten. The last one recalled is
        that up to which the stream has read, or is read again.
        """
        ...

    def after(self, version: int, until: int) -> Iterator[Commit[FileT]]:
        """Yield the commits after a version up to another one, oldest first."""
        ...

    def commit(self, version: int) -> Commit[FileT]: ...

    def snapshot(self, version: int, after: int, until: int | None) -> Iterable[Part[FileT]]:
        """Yield the files at a version, in an order that never changes.

        Args:
            after: `Position.files`: those before were read
            until: `Position.files` after the last part; None: all
        """
        ...

    def select(self, file: FileT) -> ScanFile | None:
        """Return what is read of a file; None if no row can match the condition of the stream."""
        ...

    def joined(self, files: Iterable[ScanFile]) -> Iterable[ScanFile]:
        """Return the files of a batch, with parts of the same file put together where this reads less."""
        ...
