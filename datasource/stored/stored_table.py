"""A stream's table, as commands and the delivery process need it without the options of its query.

A stored table may have further capabilities. Generic code checks for them with isinstance, and never for a
kind. `batch_rows.HoldsRows` is one more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.cleaning.cleanup import CleanableTable, NameParser
    from ...committers.contract import StreamKey
    from ...committers.lineage import TableCommit
    from ...committers.store.sql import SqlManifestStore
    from ...committers.target import Committer


@dataclass(frozen=True, slots=True)
class TableNow:
    """The current state of a table."""

    table_id: str
    version: int


@dataclass(frozen=True, slots=True)
class TableContents:
    """The data files of a table."""

    version: int
    sizes: Sequence[int]
    """Bytes of each file."""
    rows: int | None
    """With the deleted ones; None if the table does not know."""
    deleted_rows: int
    """Rows that are deleted and still in the files, at most."""


class StoredTable(Protocol):
    """A stream's table, opened by its address in the store. Runs in the commands and the delivery process."""

    def committer(self) -> Committer:
        """Return a committer. Each instance loads the table once."""
        ...

    def now(self) -> TableNow | None:
        """Return the current state of the table; None if it does not exist.

        Raises:
            RetryableError: the table cannot be read now.
        """
        ...


@runtime_checkable
class Cleanable(Protocol):
    """A stored table in whose location failed tasks and killed drivers may leave files."""

    def cleanable(self, store: SqlManifestStore) -> CleanableTable:
        """Return the table for the clean-up."""
        ...

    def name_parser(self, streams: Sequence[StreamKey]) -> NameParser:
        """Return a parser that recognizes the files of these streams, which all write to this table."""
        ...

    def moves_rows(self) -> bool:
        """True if a commit copies the rows out of the manifest's files, which are then no longer needed."""
        ...


@runtime_checkable
class HasContents(Protocol):
    """A stored table that lists its data files, for `penstock ui`."""

    def contents(self) -> TableContents | None:
        """Return the current data files; None if the table does not exist.

        Raises:
            RetryableError: the table cannot be read now.
        """
        ...


@runtime_checkable
class HasLineage(Protocol):
    """A stored table whose own history says which offsets its versions have read, for `penstock lineage`."""

    def commits(self, version: int | None = None) -> Iterator[TableCommit]:
        """Yield the commits that the history still has, newest first, or only that of one version.

        Raises:
            RetryableError: the table cannot be read now.
        """
        ...


@runtime_checkable
class Readable(Protocol):
    """A stored table whose rows Penstock can read, for `penstock dead-letters`."""

    def read(self, column: str, value: str) -> pa.Table | None:
        """Return the rows with this value in a text column; None if the table does not exist.

        Raises:
            TableNotSupportedError: Penstock does not read its files.
            RetryableError: the table cannot be read now.
        """
        ...
