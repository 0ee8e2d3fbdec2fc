"""Plans the changes of a batch from the columns of the query. Runs on the driver, before any task starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ...committers.changes.history import check_history
from ...committers.changes.kept_values import check_partial
from ...committers.contract import Changes, History
from ...committers.errors import ConfigurationError, SchemaMismatchError
from ...writers.changes.row_kinds import KEPT, RowKinds
from .condition import condition
from .envelopes import are_decoded, changes_of_decoded, plan_envelope
from .modes import EnvelopeChanges


@dataclass(frozen=True, slots=True)
class PlannedChanges:
    """How the tasks of a batch read its rows."""

    kinds: RowKinds
    columns: pa.Schema
    """The columns of the rows that the table gets, and those of its history."""
    rows: pa.Schema
    """The columns of the rows: those of the query, or of its messages once they are decoded."""

    def in_table(self, table: pa.Schema, new_columns: Sequence[str] = ()) -> Changes:
        """Return the changes with the names of the columns as the table has them.

        Args:
            table: the columns of the table
            new_columns: those that it gets with this batch

        Raises:
            SchemaMismatchError: the table cannot find rows by the keys, or compare their order; or it has no
                history.
            ConfigurationError: an option names a column that neither query nor table has.
        """
        changes = self.kinds.changes
        compared = changes.order_by if changes.late_rows == "ignore" else ()
        named = replace(
            changes,
            keys=_as_in(changes.keys, table),
            order_by=_as_in(changes.order_by, table) if compared else changes.order_by,
            partial_columns=_as_in(changes.partial_columns, table),
            history=_history_in(changes.history, table),
        )
        _check_types("keys", named.keys, table)
        check_partial(named, table.names)
        if named.history is not None:
            check_history(named.history, [name for name in table.names if name not in new_columns])
            _check_bounds(named.history, table)
        return named


def plan_changes(rows: pa.Schema, changes: Changes) -> PlannedChanges:
    """
    Args:
        rows: the columns of the query

    Raises:
        ConfigurationError: an option names a column that the query does not have, or that cannot be compared.
    """
    decode = None
    if isinstance(changes, EnvelopeChanges) and are_decoded(rows):
        changes = changes_of_decoded(rows, changes)
    elif isinstance(changes, EnvelopeChanges):
        decode, changes = plan_envelope(rows, changes)
        rows = decode.target.schema
    for option, names in (
        ("keys", changes.keys),
        ("orderBy", changes.order_by),
        ("dropColumns", changes.drop_columns),
    ):
        known = {name.lower() for name in rows.names}
        if missing := [name for name in names if name.lower() not in known]:
            raise ConfigurationError(
                f"{option} names {', '.join(map(repr, missing))}, and the query has only the columns "
                f"{', '.join(rows.names)}. Nothing was written. Correct the option; only columns at the top "
                "level can be named."
            )
    named = replace(
        changes,
        keys=_as_in(changes.keys, rows),
        order_by=_as_in(changes.order_by, rows),
        drop_columns=_as_in(changes.drop_columns, rows),
        partial_columns=_as_in(changes.partial_columns, rows),
    )
    _check_types("keys", named.keys, rows)
    _check_types("orderBy", named.order_by, rows)
    deletes = condition(changes.delete_when, rows) if changes.delete_when else None
    left_out = {*named.drop_columns, KEPT}
    columns = pa.schema([column for column in rows if column.name not in left_out])
    if named.history is not None:
        columns = _with_history(columns, named.history, rows.field(named.order_by[0]).type)
    return PlannedChanges(RowKinds(named, deletes, decode), columns, rows)


def _with_history(columns: pa.Schema, history: History, kind: pa.DataType) -> pa.Schema:
    """
    Args:
        kind: type of the first column of `orderBy`
    """
    names = (history.valid_from, history.valid_to, history.is_current)
    given = {name.lower() for name in columns.names}
    if taken := [name for name in names if name.lower() in given]:
        raise SchemaMismatchError(
            f"history=true: the query has the column {', '.join(map(repr, taken))}, which the history of "
            "the table fills. Drop it in the query or with dropColumns, or give the column of the history "
            "another name with validFrom, validTo or isCurrent. Nothing was written."
        )
    types = (kind, kind, pa.bool_())
    return pa.schema([*columns, *(pa.field(name, one) for name, one in zip(names, types, strict=True))])


def _history_in(history: History | None, table: pa.Schema) -> History | None:
    if history is None:
        return None
    return History(*_as_in((history.valid_from, history.valid_to, history.is_current), table))


def _check_bounds(history: History, table: pa.Schema) -> None:
    first, last = (table.field(name).type for name in (history.valid_from, history.valid_to))
    if first != last:
        raise SchemaMismatchError(
            f"history=true: {history.valid_from!r} is {first} and {history.valid_to!r} is {last} in the "
            "table. Both hold values of orderBy, so give them one type. Nothing was written."
        )


def _as_in(names: Sequence[str], columns: pa.Schema) -> tuple[str, ...]:
    by_lower = {name.lower(): name for name in columns.names}
    return tuple([by_lower.get(name.lower(), name) for name in names])


def _check_types(option: str, names: Sequence[str], columns: pa.Schema) -> None:
    problems = list(_problems(names, columns))
    if problems:
        raise SchemaMismatchError(f"{option}: {'; '.join(problems)}. Nothing was written.")


def _problems(names: Sequence[str], columns: pa.Schema) -> Iterator[str]:
    for name in names:
        if name not in columns.names:
            yield f"the table has no column {name!r}"
            continue
        data_type = columns.field(name).type
        if pa.types.is_floating(data_type):
            yield (
                f"{name!r} is {data_type}, and such numbers are rounded and may be NaN: cast it to DECIMAL, "
                "BIGINT or STRING in the query"
            )
        elif pa.types.is_nested(data_type) or pa.types.is_null(data_type):
            yield f"{name!r} is {data_type}, which cannot be compared: take one of its fields as a column"
