"""The columns of a table, how a batch matches them, and how its commit changes them. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ..contract import Mode
from ..file_tables.evolution import NO_EVOLUTION, Evolution, Narrowing


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    sql_type: str
    """In the form in which the database lists it."""
    is_required: bool = False
    """NOT NULL."""
    is_filled: bool = False
    """The database fills the column if no value is given: a default, an identity or an expression."""
    is_computed: bool = False
    """The database accepts no value: GENERATED ALWAYS."""
    is_key: bool = False
    """Part of the primary key, so that it is always NOT NULL."""

    def __str__(self) -> str:
        return self.sql_type


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """What a commit does to the columns that the table has. The transaction of the batch does it."""

    types: tuple[tuple[str, str], ...] = ()
    """Name and wider SQL type."""
    relaxed: tuple[str, ...] = ()
    """Columns that become nullable."""
    renames: tuple[tuple[str, str], ...] = ()
    """Old and new name."""

    def __bool__(self) -> bool:
        return bool(self.types or self.relaxed or self.renames)

    def applied_to(self, columns: Sequence[TableColumn]) -> tuple[TableColumn, ...]:
        """Return the columns of a table after the changes, except for new names."""
        types = dict(self.types)
        return tuple(
            replace(
                column,
                sql_type=types.get(column.name, column.sql_type),
                is_required=column.is_required and column.name not in self.relaxed,
            )
            for column in columns
        )


NO_CHANGES = ColumnChanges()


@dataclass(frozen=True, slots=True)
class AlterTable:
    """What one commit does to the columns of a table: first the renames, then the rest."""

    renames: tuple[tuple[str, str], ...] = ()
    added: tuple[tuple[str, str], ...] = ()
    types: tuple[tuple[str, str], ...] = ()
    relaxed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.renames or self.added or self.types or self.relaxed)


@dataclass(frozen=True, slots=True)
class TableState:
    """The current state of a table."""

    table_id: str
    """What tells it from an earlier table of the same name."""
    columns: tuple[TableColumn, ...]
    unsupported: str = ""
    """Why rows cannot be committed to it; empty if they can."""
    owner: str = ""
    delete_trigger: str = ""
    """A trigger that may prevent rows from being deleted, and its table."""
    unsupported_append: str = ""
    """Why rows cannot be added to it, though they may be changed by key; empty if they can."""


@dataclass(frozen=True, slots=True)
class TableMatch:
    """How the columns of a query match those of a table."""

    rows: pa.Schema
    """The columns of the query that the table has, or gets."""
    columns: tuple[TableColumn, ...]
    """The table's column for each of them, after the changes."""
    new: tuple[TableColumn, ...]
    changes: ColumnChanges


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the query asks for."""

    create: bool = True
    evolution: Evolution = NO_EVOLUTION
    mode: Mode = "append"
    """Column names have the case of the query's columns."""
    staging_schema: str = ""
    narrows: Narrowing = Narrowing.NONE
    """See `matching.match`."""
