"""Connections to a database, and the meaning of its errors. Runs anywhere."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, ClassVar

from ..errors import PenstockError
from .contract import Cursor

COMMIT_TIMEOUT_S = 3600.0
"""For statements that move rows: `INSERT ... SELECT` of all rows of a task."""
IDLE_TASK_TIMEOUT_S = 86_400.0
"""How long a task may wait for its next rows inside its transaction."""

_NEXT_STEPS = (
    (
        r"^(25006|1290|1792|1836)\b|read[- ]only",
        "The database is read-only: is it a standby? Write to the primary.",
    ),
    (
        r"^(53300|1040|1203|1226)\b|too many (clients|connections)|connection slots|max_user_connections",
        "The database has no free connection: let fewer tasks write at once, or raise its limit.",
    ),
    (
        r"^(57014|1969|3024)\b|statement timeout|read operation timed out",
        "A statement took longer than its limit: give the query a smaller batch, or raise the limit.",
    ),
    (r"^(55P03|1205)\b|lock (wait )?timeout|is locked", "Another transaction holds a lock: let it end."),
)
"""What to do after errors, by code or text: a server that refuses a connection may send no code."""


class DatabaseServer(ABC):
    """How to connect to the database. Pickled with the plan of a batch, because tasks connect too.

    Only the subclass handles exceptions of the driver.
    """

    __slots__ = ()

    errors: ClassVar[type[Exception]]
    """The base class of the driver's errors."""

    @abstractmethod
    def connect(self, statement_timeout_s: float = ..., idle_timeout_s: float = ...) -> Any:
        """Open a connection of the Python DB-API. A transaction lasts until `commit`, or until `close`, which
        rolls back.

        Raises:
            RetryableError: the database cannot be reached now; `AccessRefusedError` if it denies access.
        """

    def is_missing(self) -> bool:
        """Return True if there is no database yet."""
        return False

    def is_new(self) -> bool:
        """Return True if there is no database yet, and `connect` would create it."""
        return False

    @contextmanager
    def transaction(self, so: str) -> Iterator[Cursor]:
        """Open a connection with one short transaction, which is committed if the block ends without an
        exception.

        Args:
            so: see `failed`

        Raises:
            RetryableError: the database failed or does not answer.
        """
        with closing(self.connect()) as connection:
            try:
                yield connection.cursor()
                connection.commit()
            except self.errors as error:
                raise self.failed(error, so) from None  # its details contain values of rows

    # The meaning of errors: all get an error of the driver --------------------------------------------

    @abstractmethod
    def failed(self, error: Any, so: str) -> PenstockError:
        """The error to raise if nothing was changed.

        Args:
            so: the consequence for the user, as a sentence without a full stop
        """

    def next_step(self, error: Any) -> str:
        """What to do after an error that is neither about values nor about access, as a sentence."""
        text = f"{self.code(error)} {self.in_short(error)}"
        found = (step for pattern, step in _NEXT_STEPS if re.search(pattern, text, re.IGNORECASE))
        return next(found, "Check that it can be reached.")

    @abstractmethod
    def is_conflict(self, error: Any) -> bool:
        """Return True if another transaction was in the way and the server has rejected this one."""

    @abstractmethod
    def is_about_values(self, error: Any) -> bool:
        """Return True if a value was rejected: by its type, a constraint, a limit or a trigger."""

    def is_answer(self, error: Any) -> bool:
        """Return True if the server has rejected the COMMIT."""
        return self.is_about_values(error) or self.is_conflict(error)

    @abstractmethod
    def in_short(self, error: Any) -> str:
        """One line without values of rows."""

    @abstractmethod
    def code(self, error: Any) -> str:
        """The database's code of the error, for dead letters."""


class TransactionalServer(DatabaseServer):
    """A database that commits a batch in one transaction."""

    __slots__ = ()

    @abstractmethod
    def savepoint(self, cursor: Cursor) -> AbstractContextManager[Any]:
        """In the block statements take effect together or not at all, within the transaction."""
