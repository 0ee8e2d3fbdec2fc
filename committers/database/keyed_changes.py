"""What a database gives so that rows of its tables can be changed by key. Importable on executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from ..contract import Batch, Changes
from .content import TableContent
from .contract import Cursor, Mover
from .layout import TableMatch, TableState


class KeyedChanges(ABC):
    """The changes of one database: `writeMode=upsert`. Has no state."""

    computes_rows: ClassVar[bool] = False
    """True: rows may leave columns as they are, also rows that are messages; and it has `history`."""

    @abstractmethod
    def prepare(
        self, cursor: Cursor, address: Any, table: TableState, changes: Changes, match: TableMatch
    ) -> None:
        """Check that the table can be changed by key, and create what changes need. Part of a plan.

        Args:
            changes: with names of columns of the table

        Raises:
            TableNotSupportedError: it cannot.
        """

    @abstractmethod
    def check_table(self, cursor: Cursor, address: Any, table: TableState, changes: Changes) -> None:
        """Check again, in the transaction of a commit, what `prepare` has checked."""

    @abstractmethod
    def check_one_row(self, cursor: Cursor, batch: Batch, content: TableContent) -> None:
        """Check that each key of a batch has one last row, before the batch is prepared.

        Raises:
            SchemaMismatchError: two different rows of one key could be the last one.
        """

    @abstractmethod
    def mover_of(self, changes: Changes) -> Callable[..., Mover]:
        """A `changing.RowChanger`, which moves the rows of a batch."""

    def accept(self, cursor: Cursor, address: Any, before: str, now: str) -> None:
        """Let what belongs to a table count for the one that took its place.

        Args:
            before, now: their ids
        """
        return
