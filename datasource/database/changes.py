"""Plans how rows that change a table by key are staged. Runs on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from ...committers.contract import History
from ...committers.database.content import TableContent
from ...committers.database.dialect import Dialect
from ...committers.database.staged_rows import encoded_schema
from ...committers.database.staging import DELETES, KEPT, ORDER, RESERVED
from ...committers.errors import SchemaMismatchError
from ...writers.database.changed_rows import StagedChanges
from ..changes.planning import PlannedChanges

_NOT_ORDERED = {"json", "jsonb"}


def stage_changes(
    planned: PlannedChanges, rows: pa.Schema, columns: pa.Schema, content: TableContent, dialect: Dialect
) -> tuple[StagedChanges, TableContent]:
    """Return how tasks stage the rows, and the content of the manifest with that.

    Args:
        rows: the columns of the query
        columns: those of the table that it writes, in the order of `planned.columns`
        content: of rows that are appended

    Raises:
        SchemaMismatchError: the columns cannot be compared, or have names that Penstock uses.
    """
    changes = planned.kinds.changes
    _check_names(columns.names)
    in_table = dict(zip(planned.columns.names, columns.names, strict=True))
    types = dict(content.columns)
    order, extra, fields = [], [], []
    for number, name in enumerate(changes.order_by, 1):
        kind = types[in_table[name]] if name in in_table else dialect.types.sql_type(rows.field(name).type)
        if kind is None or kind in _NOT_ORDERED:
            raise SchemaMismatchError(
                f"orderBy: {name!r} is {kind or rows.field(name).type} in {dialect.name}, which has no "
                "order. Cast it in the query. Nothing was written."
            )
        staged = in_table.get(name, f"{ORDER}{number}")
        order.append(pa.field(staged, dialect.types.text_type(kind, rows.field(name).type)))
        if name not in in_table:
            extra.append((staged, kind))
            fields.append(rows.field(name))
    may_keep = bool(changes.partial_columns) or planned.kinds.decode is not None
    keeps = may_keep and dialect.keyed_changes().computes_rows
    staged_changes = StagedChanges(
        planned.kinds,
        tuple([in_table[name] for name in changes.identity]),
        pa.schema(order),
        DELETES,
        KEPT if keeps else "",
    )
    history = changes.history
    if history is not None:
        history = History(*(in_table[name] for name in (history.valid_from, *changes.ends)))
    mode = replace(
        changes,
        keys=tuple([in_table[name] for name in changes.keys]),
        history=history,
        order_by=tuple([field.name for field in order]),
        partial_columns=tuple([in_table.get(name, name) for name in changes.partial_columns]),
    )
    schema = pa.schema([*planned.columns, *fields, pa.field(DELETES, pa.bool_())])
    extra.append((DELETES, str(dialect.types.sql_type(pa.bool_()))))
    if keeps:
        schema = schema.append(pa.field(KEPT, pa.string()))
        extra.append((KEPT, str(dialect.types.sql_type(pa.string()))))
    return staged_changes, replace(content, mode=mode, extra=tuple(extra), schema=encoded_schema(schema))


def _check_names(names: Sequence[str]) -> None:
    if reserved := [name for name in names if name.startswith(RESERVED)]:
        raise SchemaMismatchError(
            f"The columns {', '.join(map(repr, reserved))} have names that Penstock uses for the staging "
            "tables of changes. Rename them. Nothing was written."
        )
