"""How the columns of a query match those of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pyarrow as pa

from ..contract import Changes, Mode
from ..errors import TableNotSupportedError
from ..file_tables import schema_diff
from ..file_tables.evolution import Evolution, Narrowing
from ..file_tables.schema_diff import (
    QUERY,
    Difference,
    DifferenceKind,
    compare,
    problems_in,
    query_mismatch,
    without_case,
)
from ..file_tables.table_changes import check_same_id, dropped
from .columns import UNFILLED, needed_renames, renamed
from .contract import TableAddress, TypeRules
from .dialect import Dialect
from .layout import ColumnChanges, TableColumn, TableMatch, TableState


def check_supported(table: TableState, address: TableAddress, mode: Mode) -> None:
    """
    Args:
        mode: what commits do with the rows of the table

    Raises:
        TableNotSupportedError: names the feature.
    """
    problem = table.unsupported or ("" if isinstance(mode, Changes) else table.unsupported_append)
    deletes = bool(mode.delete_when) if isinstance(mode, Changes) else mode == "overwrite"
    if deletes and table.delete_trigger and not problem:
        problem = (
            f"the trigger {table.delete_trigger} runs BEFORE DELETE and may keep rows that are to be "
            f"{'deleted' if isinstance(mode, Changes) else 'replaced'}: disable it, or append"
        )
    if problem:
        raise TableNotSupportedError(
            f"The {address.title} cannot be written: {problem}. Nothing was written."
        )


def check_same_table(
    table: TableState | None, table_id: str | None, address: TableAddress, id_name: str
) -> None:
    """
    Args:
        id_name: see `Dialect`

    Raises:
        TableChangedError: it does not exist, or has another id than `table_id`.
    """
    if table is None:
        raise dropped(address.title)
    check_same_id(address.title, table.table_id, table_id, name=id_name)


def check_names(rows: pa.Schema, address: TableAddress, dialect: Dialect, encoding: str) -> None:
    """
    Args:
        encoding: of the database

    Raises:
        SchemaMismatchError: lists the names that no column of the database can have.
    """
    problems = [problem for name in rows.names if (problem := dialect.name_problem(name, encoding))]
    if dialect.ignores_case:
        folded = Counter(name.lower() for name in rows.names)
        problems += [
            f"{name!r} is there twice: the names of columns in {dialect.name} ignore case. Rename one of them"
            for name in rows.names
            if folded[name.lower()] > rows.names.count(name)
        ]
    if problems:
        raise query_mismatch(address.title, problems, _given(rows))


def new_columns_of(rows: pa.Schema, address: TableAddress, dialect: Dialect) -> tuple[TableColumn, ...]:
    """Columns for a new table, or new columns of a table: all nullable, because Spark's flags are only
    hints.

    Raises:
        SchemaMismatchError: names the columns whose type or name the database does not support.
    """
    columns, problems = [], []
    for field in rows:
        kind = dialect.types.sql_type(field.type)
        if kind is None:
            problems.append(
                f"{field.name!r} is {field.type}, which {dialect.name} cannot store without loss: write "
                f"to_json({quoted_in_spark(field.name)}) instead"
            )
        elif problem := dialect.new_name_problem(field.name):
            problems.append(problem)
        else:
            columns.append(TableColumn(field.name, kind))
    if problems:
        raise query_mismatch(address.title, problems, _given(rows))
    return tuple(columns)


_QUERY: Mapping[DifferenceKind, str] = {
    **QUERY,
    DifferenceKind.REQUIRED: UNFILLED,
    DifferenceKind.TYPE: "{columns} is {table} in the table, which cannot store {given} without loss",
    DifferenceKind.MERGED: "{names} both match {columns} in the table: leave one out",
    DifferenceKind.AMBIGUOUS: "{names} matches each of {columns} in the table: use the exact name",
}


def match(
    rows: pa.Schema,
    table: TableState,
    address: TableAddress,
    dialect: Dialect,
    *,
    evolution: Evolution,
    narrows: Narrowing = Narrowing.NONE,
) -> TableMatch:
    """Match columns by the exact name, otherwise ignoring case, as Spark does.

    Args:
        evolution: what may change
        narrows: which columns of the table may also be smaller; the writer checks each value

    Raises:
        SchemaMismatchError: lists the columns that do not fit and shows both schemas.
    """
    renames = needed_renames(table.columns, evolution.renames, address)
    present = renamed(table.columns, renames)
    given, wanted = _given(rows), _wanted(present)
    rules = dialect.types
    differences = list(compare(given, wanted, lambda kind, column: rules.holds(column.sql_type, kind)))
    changes = _changes(differences, evolution, renames, rules)
    left_out = (
        set()
        if evolution.adds or narrows is not Narrowing.ANY
        else {
            column.name for found in differences if found.kind is DifferenceKind.NEW for column in found.given
        }
    )
    problems = list(
        problems_in(
            (found for found in differences if not _is_settled(found, evolution, changes, narrows, rules)),
            _QUERY,
        )
    )
    problems += [f"{name!r} occurs twice" for name, count in Counter(rows.names).items() if count > 1]
    key = without_case(rows.names, (column.name for column in present))
    by_key = {key(column.name): column for column in changes.applied_to(present)}
    problems += [
        f"{by_key[key(name)].name!r} is GENERATED ALWAYS in the table: leave it out of the query"
        for name in rows.names
        if key(name) in by_key and by_key[key(name)].is_computed
    ]
    if problems:
        raise query_mismatch(address.title, problems, given, wanted)
    kept = pa.schema([field for field in rows if field.name not in left_out])
    new = new_columns_of(
        pa.schema([field for field in kept if key(field.name) not in by_key]), address, dialect
    )
    added = {column.name: column for column in new}
    columns = tuple(added.get(name) or by_key[key(name)] for name in kept.names)
    return TableMatch(kept, columns, new, changes)


def _changes(
    differences: Sequence[Difference[pa.DataType, TableColumn]],
    evolution: Evolution,
    renames: Sequence[tuple[str, str]],
    rules: TypeRules,
) -> ColumnChanges:
    types, relaxed = [], []
    for found in differences:
        column = found.table[0].type if found.table else None
        if column is None or not evolution.may_alter((), column.name):
            continue
        if found.kind is DifferenceKind.TYPE:
            kind = rules.widened(column.sql_type, found.given[0].type)
            if kind is not None and not column.is_computed:
                types.append((column.name, kind))
        if found.kind in (DifferenceKind.NULLS, DifferenceKind.REQUIRED) and not column.is_key:
            relaxed += [column.name] if evolution.relaxes((), column.name) else []
    return ColumnChanges(tuple(types), tuple(relaxed), tuple(renames))


def _is_settled(
    found: Difference[pa.DataType, TableColumn],
    evolution: Evolution,
    changes: ColumnChanges,
    narrows: Narrowing,
    rules: TypeRules,
) -> bool:
    """Return True if the difference is none after the batch, or if the writer checks each value."""
    if found.kind is DifferenceKind.CASE:  # columns may differ only in case
        return True
    if found.kind is DifferenceKind.NEW:
        return evolution.adds or narrows is Narrowing.ANY
    column = found.table[0].type if found.table else None
    if column is not None and found.kind is DifferenceKind.TYPE:
        is_checked = narrows is not Narrowing.NONE and rules.may_hold(column.sql_type, found.given[0].type)
        is_checked |= narrows is Narrowing.ANY and rules.is_staged_as(column.sql_type)
        return is_checked or column.name in dict(changes.types)
    return column is not None and found.kind is DifferenceKind.REQUIRED and column.name in changes.relaxed


def _given(rows: pa.Schema) -> list[schema_diff.SchemaColumn[pa.DataType]]:
    return [schema_diff.SchemaColumn(field.name, field.type) for field in rows]


def _wanted(columns: Sequence[TableColumn]) -> list[schema_diff.SchemaColumn[TableColumn]]:
    return [
        schema_diff.SchemaColumn(column.name, column, column.is_required and not column.is_filled)
        for column in columns
    ]


def quoted_in_spark(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
