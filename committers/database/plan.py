"""Checks made before any row is written: the table, its columns, the privileges of the user."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ..changes.history import check_history
from ..changes.kept_values import check_partial
from ..contract import Changes, History
from ..dry_runs import before_creating, in_dry_run
from ..errors import ConfigurationError, SchemaMismatchError
from .contract import Cursor
from .dialect import Dialect
from .layout import ColumnChanges, PlanOptions, TableColumn, TableMatch, TableState
from .matching import check_names, check_supported, match, new_columns_of


@dataclass(frozen=True, slots=True)
class TableLayout:
    """What a batch writes."""

    table_id: str
    rows: pa.Schema
    """The columns of the query that the table has, or gets."""
    columns: tuple[TableColumn, ...]
    """The table's column for each of them, after the changes."""
    new_columns: tuple[str, ...]
    changes: ColumnChanges
    """Of other columns."""
    created: bool
    encoding: str
    """Of the database; empty if it stores every text."""


def plan(
    cursor: Cursor, dialect: Dialect, address: Any, rows: pa.Schema, options: PlanOptions
) -> TableLayout:
    """Plan a batch. Create the table if it does not exist, and the fence table. Columns are added and changed
    by the commit.

    Raises:
        ConfigurationError: the table does not exist and may not be created.
        SchemaMismatchError: the columns do not fit.
        TableNotSupportedError: rows cannot be committed to the table.
        AccessRefusedError: the user lacks a privilege.
    """
    if not rows:
        raise SchemaMismatchError(
            f"The query's rows for the {address.title} have no columns. Nothing was written. "
            "Select at least one."
        )
    if isinstance(options.mode, Changes):
        dialect.keyed_changes()  # or refuses them by name
    encoding = dialect.encoding(cursor)
    check_names(rows, address, dialect, encoding)
    table = dialect.load(cursor, address)
    created = table is None
    if table is None or not dialect.fence.is_there(cursor, address):
        table = _create(cursor, dialect, address, rows, options)
    check_supported(table, address, options.mode)
    if isinstance(options.mode, Changes) and options.mode.history is not None:
        check_history(options.mode.history, [column.name for column in table.columns])
    fit = match(
        rows,
        table,
        address,
        dialect,
        evolution=options.evolution.of_batch(rows, options.mode),
        narrows=options.narrows,
    )
    dialect.check_alterable(cursor, address, table, fit)
    changes = None
    if isinstance(options.mode, Changes):
        changes = _in_table(options.mode, fit)
        check_partial(changes, [*rows.names, *(column.name for column in table.columns)])
        if changes.history is not None:
            _check_ends(changes.history, fit)
        dialect.keyed_changes().prepare(cursor, address, table, changes, fit)
    dialect.check_rights(cursor, address, table, fit, options, changes)
    return TableLayout(
        dialect.identified(cursor, address, table).table_id,
        fit.rows,
        fit.columns,
        tuple(column.name for column in fit.new),
        fit.changes,
        created,
        encoding,
    )


def _in_table(changes: Changes, fit: TableMatch) -> Changes:
    """Return the changes with the names of the table's columns, where it has them."""
    names = dict(zip(fit.rows.names, (column.name for column in fit.columns), strict=True))
    keys = tuple([names[name] for name in changes.keys])
    history = changes.history
    if history is not None:
        history = History(*(names[name] for name in (history.valid_from, *changes.ends)))
    order_by = tuple([names.get(name, name) for name in changes.order_by])
    return replace(changes, keys=keys, order_by=order_by, history=history)


def _check_ends(history: History, fit: TableMatch) -> None:
    types = {column.name: column.sql_type for column in fit.columns}
    begin, end = types[history.valid_from], types[history.valid_to]
    if begin != end:
        raise SchemaMismatchError(
            f"history=true: {history.valid_from!r} is {begin} and {history.valid_to!r} is {end} in the "
            "table. Both hold values of orderBy, so give them one type. Nothing was written."
        )


def _create(
    cursor: Cursor, dialect: Dialect, address: Any, rows: pa.Schema, options: PlanOptions
) -> TableState:
    """Create the table and the fence table. Other processes wait, then find both."""
    dialect.lock_creation(cursor, address)
    if dialect.load(cursor, address) is None:
        if not options.create:
            raise ConfigurationError(
                f"There is no {address.title}, and createTable=false. Create it, or fix dbtable."
            )
        keys = options.mode.identity if isinstance(options.mode, Changes) else ()
        columns = new_columns_of(rows, address, dialect)
        if not dialect.has_transactional_ddl:
            before_creating(address.title)
        dialect.create(cursor, address, columns, keys)
    if dialect.has_transactional_ddl or not in_dry_run():
        dialect.fence.create(cursor, address)
    table = dialect.load(cursor, address)
    assert table is not None
    return table
