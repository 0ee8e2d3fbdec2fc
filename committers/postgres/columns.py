"""The columns of a Postgres table, and how a commit changes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import SchemaMismatchError
from ..file_tables.schema_diff import DifferenceKind, SchemaColumn, by_name, compare, problems_in
from .address import PostgresAddress, quoted
from .types import can_widen, takes


@dataclass(frozen=True, slots=True)
class PostgresColumn:
    name: str
    sql_type: str
    """As formatted by `format_type`."""
    is_required: bool = False
    """NOT NULL."""
    is_filled: bool = False
    """Postgres fills the column if no value is given: a default, an identity or an expression."""
    is_computed: bool = False
    """Postgres accepts no value: GENERATED ALWAYS."""
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

    def applied_to(self, columns: Sequence[PostgresColumn]) -> tuple[PostgresColumn, ...]:
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


def needed_renames(
    columns: Sequence[PostgresColumn], renames: Sequence[tuple[str, str]], address: PostgresAddress
) -> tuple[tuple[str, str], ...]:
    """Return the renames that are not done yet.

    Raises:
        SchemaMismatchError: there is no such column, or the new name is another one's.
    """
    names = {column.name for column in columns}
    needed = []
    for old, new in renames:
        if old in names and new not in names:
            needed.append((old, new))
        elif old in names or new not in names:
            what = "has both columns" if old in names else "has neither of the columns"
            raise SchemaMismatchError(
                f"renameColumns={old}:{new}: the Postgres table {address.uri} {what}. Nothing was written. "
                "Correct the option."
            )
    return tuple(needed)


def renamed(
    columns: Sequence[PostgresColumn], renames: Sequence[tuple[str, str]]
) -> tuple[PostgresColumn, ...]:
    names = dict(renames)
    return tuple(replace(column, name=names.get(column.name, column.name)) for column in columns)


# In the commit ------------------------------------------------------------------------------------

UNFILLED = "{columns} is NOT NULL in the table, has no default, and is missing in the query"
_STAGED = {
    DifferenceKind.REQUIRED: UNFILLED,
    DifferenceKind.TYPE: "{columns} is now {table}; the rows were staged as {given}",
}


def statements(
    staged: Sequence[tuple[str, str]],
    new: Sequence[str],
    changes: ColumnChanges,
    columns: Sequence[PostgresColumn],
    address: PostgresAddress,
) -> Iterator[str]:
    """Yield the statements that make the columns of a table those of the staging tables, as far as they are
    not. A column may have been renamed, widened or made nullable since the batch was planned.

    Args:
        staged: name and SQL type of the columns of the staging tables
        new: columns that the batch adds
        columns: of the table

    Raises:
        SchemaMismatchError: the table was altered since the batch was planned, and no longer accepts its
            rows.
    """
    names = {column.name for column in columns}
    renames = [(old, name) for old, name in changes.renames if old in names and name not in names]
    columns = renamed(columns, renames)
    now = {column.name: column for column in columns}
    types = [
        (name, kind)
        for name, kind in changes.types
        if name in now and not takes(now[name].sql_type, kind) and can_widen(now[name].sql_type, kind)
    ]
    relaxed = tuple(name for name in changes.relaxed if name in now and now[name].is_required)
    rest = ColumnChanges(tuple(types), relaxed)
    added = _columns_to_add(staged, new, rest.applied_to(columns), address)
    for old, name in renames:
        yield f"ALTER TABLE {address.sql} RENAME COLUMN {quoted(old)} TO {quoted(name)}"
    clauses = [
        *(f"ADD COLUMN {quoted(name)} {kind}" for name, kind in added),
        *(f"ALTER COLUMN {quoted(name)} TYPE {kind}" for name, kind in types),
        *(f"ALTER COLUMN {quoted(name)} DROP NOT NULL" for name in relaxed),
    ]
    if clauses:
        yield f"ALTER TABLE {address.sql} {', '.join(clauses)}"


def _columns_to_add(
    staged: Sequence[tuple[str, str]],
    new: Sequence[str],
    columns: Sequence[PostgresColumn],
    address: PostgresAddress,
) -> list[tuple[str, str]]:
    given = [SchemaColumn(name, kind) for name, kind in staged]
    wanted = [
        SchemaColumn(column.name, column, column.is_required and not column.is_filled) for column in columns
    ]
    differences = list(compare(given, wanted, _takes_staged, key=by_name))
    added = [column for found in differences if found.kind is DifferenceKind.NEW for column in found.given]
    problems = [f"{column.name!r} is no longer in the table" for column in added if column.name not in new]
    problems += problems_in(differences, _STAGED)
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise SchemaMismatchError(
            f"The Postgres table {address.uri} was altered since the rows were staged, and no longer "
            "accepts them:\n"
            f"{lines}\n"
            "The batch was not committed. Undo the change, or add columns that accept the rows. Coupled "
            "query: start it again, which writes the batch for the new columns. Decoupled: run penstock "
            "retry."
        )
    return [(column.name, column.type) for column in added]


def _takes_staged(kind: str, column: PostgresColumn) -> bool:
    return takes(column.sql_type, kind) and not column.is_computed
