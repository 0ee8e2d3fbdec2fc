"""Plans the changes of a batch from the columns of the query. Runs on the driver, before any task starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ...committers.contract import Changes
from ...committers.errors import ConfigurationError, SchemaMismatchError
from ...writers.changes.row_kinds import RowKinds
from .condition import condition
from .envelopes import are_decoded, changes_of_decoded, plan_envelope
from .modes import EnvelopeChanges


@dataclass(frozen=True, slots=True)
class PlannedChanges:
    """How the tasks of a batch read its rows."""

    kinds: RowKinds
    columns: pa.Schema
    """The columns of the rows that the table gets."""
    rows: pa.Schema
    """The columns of the rows: those of the query, or of its messages once they are decoded."""

    def in_table(self, table: pa.Schema) -> Changes:
        """Return the changes with the names of the columns as the table has them.

        Args:
            table: the columns of the table

        Raises:
            SchemaMismatchError: the table cannot find rows by the keys, or compare their order.
        """
        changes = self.kinds.changes
        compared = changes.order_by if changes.late_rows == "ignore" else ()
        named = replace(
            changes,
            keys=_as_in(changes.keys, table),
            order_by=_as_in(changes.order_by, table) if compared else changes.order_by,
        )
        _check_types("keys", named.keys, table)
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
    )
    _check_types("keys", named.keys, rows)
    _check_types("orderBy", named.order_by, rows)
    deletes = condition(changes.delete_when, rows) if changes.delete_when else None
    columns = pa.schema([column for column in rows if column.name not in named.drop_columns])
    return PlannedChanges(RowKinds(named, deletes, decode), columns, rows)


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
