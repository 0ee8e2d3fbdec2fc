"""The columns of a table, and how a commit changes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import SchemaMismatchError
from ..file_tables.schema_diff import DifferenceKind, SchemaColumn, by_name, compare, problems_in
from .contract import TableAddress, TypeRules
from .layout import AlterTable, ColumnChanges, TableColumn


def needed_renames(
    columns: Sequence[TableColumn], renames: Sequence[tuple[str, str]], address: TableAddress
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
                f"renameColumns={old}:{new}: the {address.title} {what}. Nothing was written. "
                "Correct the option."
            )
    return tuple(needed)


def renamed(columns: Sequence[TableColumn], renames: Sequence[tuple[str, str]]) -> tuple[TableColumn, ...]:
    names = dict(renames)
    return tuple(replace(column, name=names.get(column.name, column.name)) for column in columns)


# In the commit ------------------------------------------------------------------------------------

UNFILLED = "{columns} is NOT NULL in the table, has no default, and is missing in the query"
_STAGED = {
    DifferenceKind.REQUIRED: UNFILLED,
    DifferenceKind.TYPE: "{columns} is now {table}; the rows were staged as {given}",
}


def needed_changes(
    staged: Sequence[tuple[str, str]],
    new: Sequence[str],
    changes: ColumnChanges,
    columns: Sequence[TableColumn],
    address: TableAddress,
    rules: TypeRules,
) -> AlterTable:
    """Return what makes the columns of a table those of the staging tables, as far as they are not. A column
    may have been renamed, widened or made nullable since the batch was planned.

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
    types = tuple(
        (name, kind)
        for name, kind in changes.types
        if name in now
        and not rules.takes(now[name].sql_type, kind)
        and rules.can_widen(now[name].sql_type, kind)
    )
    relaxed = tuple(name for name in changes.relaxed if name in now and now[name].is_required)
    after = ColumnChanges(types, relaxed).applied_to(columns)
    added = _columns_to_add(staged, new, after, address, rules)
    return AlterTable(tuple(renames), tuple(added), types, relaxed)


def _columns_to_add(
    staged: Sequence[tuple[str, str]],
    new: Sequence[str],
    columns: Sequence[TableColumn],
    address: TableAddress,
    rules: TypeRules,
) -> list[tuple[str, str]]:
    given = [SchemaColumn(name, kind) for name, kind in staged]
    wanted = [
        SchemaColumn(column.name, column, column.is_required and not column.is_filled) for column in columns
    ]

    def takes_staged(kind: str, column: TableColumn) -> bool:
        return rules.takes(column.sql_type, kind) and not column.is_computed

    differences = list(compare(given, wanted, takes_staged, key=by_name))
    added = [column for found in differences if found.kind is DifferenceKind.NEW for column in found.given]
    problems = [f"{column.name!r} is no longer in the table" for column in added if column.name not in new]
    problems += problems_in(differences, _STAGED)
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise SchemaMismatchError(
            f"The {address.title} was altered since the rows were staged, and no longer "
            "accepts them:\n"
            f"{lines}\n"
            "The batch was not committed. Undo the change, or add columns that accept the rows. Coupled "
            "query: start it again, which writes the batch for the new columns. Decoupled: run penstock "
            "retry."
        )
    return [(column.name, column.type) for column in added]
