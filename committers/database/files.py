"""Databases in a file, which a query may create. Runs anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from ..dry_runs import before_creating
from ..errors import ConfigurationError
from .server import TransactionalServer


class FileServer(TransactionalServer):
    """See `TransactionalServer`."""

    __slots__ = ()

    file_title: ClassVar[tuple[str, str]]
    """Kind of database, and the option that names it."""
    path: str
    """Empty if it is not in a file."""
    may_create: bool
    """False: a missing file is an error."""

    def is_missing(self) -> bool:
        return bool(self.path) and not Path(self.path).exists()

    def is_new(self) -> bool:
        return self.may_create and self.is_missing()

    def check_file(self) -> None:
        """Called before the file is opened, which creates it.

        Raises:
            ConfigurationError: it does not exist, and must not be created.
        """
        if not self.is_missing():
            return
        kind, option = self.file_title
        if not self.may_create:
            raise ConfigurationError(
                f"There is no {kind} database {self.path}. Nothing was changed. Restore it, or fix {option}; "
                "with createTable=true a query creates it."
            )
        before_creating(f"{kind} database {self.path}")
