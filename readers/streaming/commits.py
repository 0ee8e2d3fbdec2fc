"""Commits of a table, as streams read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Generic, Protocol, TypeVar

from ..scan import ScanFile
from .positions import Position

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
    """All files are in the same batch, whatever the limits: a row that was updated has rows in several."""
    other_schema: str = ""
    """Why the rows do not fit the columns of the stream; empty if they do."""


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
        """Return the newest version, `NOTHING` if there is none.

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

    def order_of(self, version: int) -> int | None:
        """See `Offset.order`."""
        ...

    def recall(self, version: int, order: int | None) -> None:
        """Take what an offset says of a version that the table may have forgotten."""
        ...

    def after(self, version: int, until: int) -> Iterator[Commit[FileT]]:
        """Yield the commits after a version up to another one, oldest first."""
        ...

    def commit(self, version: int) -> Commit[FileT]: ...

    def snapshot(self, version: int) -> Sequence[FileT]:
        """Return all files at a version, in an order that never changes."""
        ...

    def select(self, file: FileT) -> ScanFile | None:
        """Return what is read of a file; None if no row can match the condition of the stream."""
        ...
