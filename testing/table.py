"""What `check` sees of a table, whichever format it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class TableVersion:
    """The newest version of a table, read through duckdb. All paths are whole."""

    relation: str
    """What a query on the same connection reads its rows by."""
    added: Mapping[str, int]
    """See `Observation.added`."""
    live: Collection[str]
    """The files that it names."""
    stored: set[str]
    """The data files below the table's locations, whether it names them or not."""
    tokens: Sequence[tuple[str, int, int]]
    """See `Observation.tokens`."""


class Table(Protocol):
    """A table that can be checked: a `DeltaTable` or an `IcebergTable`."""

    @property
    def uri(self) -> str:
        """As the manifest store knows it."""
        ...

    def relation(self, connection: DuckDBPyConnection) -> str:
        """What a query on this connection reads the table's newest version by."""
        ...

    def read(self, connection: DuckDBPyConnection) -> TableVersion:
        """
        Raises:
            ConfigurationError: there is no such table.
        """
        ...
