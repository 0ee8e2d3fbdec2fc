"""Names of columns that a table format, or its readers, use for columns of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import SchemaMismatchError


@dataclass(frozen=True, slots=True)
class ReservedNames:
    """Names that a column of a new table, and a new column of a table, cannot have."""

    reason: str
    """Why readers need these names, as a clause."""
    names: frozenset[str] = frozenset()
    """In lower case: readers ignore case, or SQL does."""
    prefixes: tuple[str, ...] = ()
    """In their exact case."""

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.names or name.startswith(self.prefixes)

    def check(self, columns: Iterable[str], table: str) -> None:
        """
        Args:
            columns: top-level columns that the table does not have yet
            table: its format and address

        Raises:
            SchemaMismatchError: names the columns.
        """
        refused = [name for name in columns if name in self]
        if refused:
            raise SchemaMismatchError(
                f"The {table} cannot get the columns {', '.join(map(repr, refused))}: {self.reason}. Rename "
                "them in the query. Nothing was written."
            )
