"""A table as `check` reads it, independent of the format."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class TableVersion:
    """The newest version of a table, read through duckdb. All paths are full paths."""

    relation: str
    """The relation of its rows, for a query on the same connection."""
    added: Mapping[str, int]
    """See `Observation.added`."""
    live: Collection[str]
    """The files that it references."""
    stored: set[str]
    """All data files below the table's locations, also those that it does not reference."""
    tokens: Sequence[tuple[str, int, int]]
    """See `Observation.tokens`."""


class Table(Protocol):
    """A table that can be checked: a `DeltaTable` or an `IcebergTable`."""

    @property
    def uri(self) -> str:
        """Return the address of the table in the manifest store."""
        ...

    def relation(self, connection: DuckDBPyConnection) -> str:
        """Return the relation of the table's newest version, for a query on this connection."""
        ...

    def read(self, connection: DuckDBPyConnection) -> TableVersion:
        """Read the newest version.

        Raises:
            ConfigurationError: the table does not exist.
        """
        ...
