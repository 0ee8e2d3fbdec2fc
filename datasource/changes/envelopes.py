"""Plans how the messages of a source of changes are decoded, from the columns of the query. Driver only."""

from __future__ import annotations

import pyarrow as pa

from ...committers.contract import Changes
from ...committers.errors import ConfigurationError
from ...writers.changes.envelopes.avro_values import SchemaResolver
from ...writers.changes.envelopes.decoder import KAFKA_COLUMNS, OFFSET, RowDecoder
from ...writers.changes.envelopes.events import DELETED, POSITION, SEQUENCE, TIME, Target
from .forms import FORMATS_BY_NAME, POSITIONS, form_of, may_have_position
from .modes import FEEDS, EnvelopeChanges
from .value_columns import value_columns


def plan_envelope(
    rows: pa.Schema, changes: EnvelopeChanges, schema_of: SchemaResolver | None = None
) -> tuple[RowDecoder, Changes]:
    """Return what decodes the rows of the query, and the changes by the columns of the decoded rows.

    Args:
        rows: the columns of the query
        schema_of: returns the schema of a message with a schema id; None: the option `avroSchema` has it

    Raises:
        ConfigurationError: the query does not have the columns of the format, or an option is missing.
    """
    envelope = changes.envelope
    kind = FORMATS_BY_NAME[envelope.format]
    form = form_of(rows, envelope, changes.keys, schema_of)
    lower = {name.lower(): name for name in form.columns.names}
    if missing := [name for name in changes.keys if name.lower() not in lower]:
        raise ConfigurationError(
            f"keys names {', '.join(map(repr, missing))}, and the rows of changes={envelope.format} have "
            f"only the columns {', '.join(form.columns.names)}. Nothing was written. Correct the option."
        )
    keys = tuple([lower[name.lower()] for name in changes.keys])
    ordering = {name.lower() for name in changes.order_by}
    passed = [
        column
        for column in rows
        if column.name not in form.consumed
        and (column.name not in form.kafka or column.name.lower() in ordering - set(lower))
    ]
    if twice := [column.name for column in passed if column.name.lower() in lower]:
        raise ConfigurationError(
            f"changes={envelope.format}: the query and the rows in its messages both have a column "
            f"{twice[0]}. Rename it, or leave it out of the query. Nothing was written."
        )
    in_rows = {*form.columns.names, *(one.name for one in passed)}
    if reserved := [name for name in (*_OWN, TIME) if name in in_rows]:
        raise ConfigurationError(
            f"changes={envelope.format} adds a column {reserved[0]}, and the query has one. Rename it."
        )
    order_by = _order(changes, form.is_flat and OFFSET not in form.kafka)
    target = Target(
        form.columns,
        keys,
        pa.schema(passed),
        needs_position=POSITION in order_by,
        has_time=TIME in ordering,
    )
    decoder = RowDecoder(
        kind, target, form.reader, form.is_flat, form.given or {}, form.names or {}, form.kafka
    )
    may_have_offset = form.reader is not None or OFFSET in form.kafka
    if target.needs_position and not (may_have_offset or may_have_position(rows, envelope.format)):
        raise ConfigurationError(
            f"changes={envelope.format}: the query has no column that orders the messages. Keep the column "
            f"offset of Kafka, or {POSITIONS[envelope.format]}; or set orderBy. Nothing was written."
        )
    return decoder, _changes_of(changes, target, rows, order_by, form.kafka)


_OWN = (DELETED, POSITION, SEQUENCE)


def are_decoded(rows: pa.Schema) -> bool:
    """Return True if these are the columns of rows that a `RowDecoder` has made."""
    return all(name in rows.names for name in _OWN)


def changes_of_decoded(rows: pa.Schema, changes: EnvelopeChanges) -> Changes:
    """Return the changes of rows that were decoded before they were stored.

    Args:
        rows: their columns
    """
    named = {name.lower(): name for name in rows.names}
    keys = tuple([named[name.lower()] for name in changes.keys])
    of_messages = (
        value_columns(changes.envelope.value_columns).names if changes.envelope.value_columns else ()
    )
    passed = [
        column
        for column in rows
        if column.name not in _OWN and column.name in KAFKA_COLUMNS and column.name not in of_messages
    ]
    own = (*_OWN, TIME)
    target = Target(
        pa.schema([column for column in rows if column.name not in own and column not in passed]),
        keys,
        pa.schema(passed),
        has_time=TIME in rows.names,
    )
    kafka = frozenset(one.name for one in passed)
    return _changes_of(changes, target, rows, _order(changes, has_no_order=False), kafka)


def _order(changes: EnvelopeChanges, has_no_order: bool) -> tuple[str, ...]:
    """
    Args:
        has_no_order: if the rows of DMS have none
    """
    name = changes.envelope.format
    if name in FEEDS:
        if name == "iceberg-changelog" and changes.late_rows == "ignore" and not changes.order_by:
            raise ConfigurationError(
                "changes=iceberg-changelog with lateRows=ignore needs orderBy: the ordinals of a changelog "
                "view count from 0 in each view, so they cannot be compared with those of earlier batches."
            )
        return (*changes.order_by, SEQUENCE) if changes.order_by else (POSITION, SEQUENCE)
    if changes.order_by:
        return changes.order_by
    if name == "dms" and has_no_order:
        raise ConfigurationError(
            "changes=dms needs orderBy: columns that order the rows of a key, such as one that a "
            "transformation rule adds with $AR_H_CHANGE_SEQ. Rows with a column Op have no order of their "
            "own."
        )
    return POSITION, SEQUENCE


def _changes_of(
    changes: EnvelopeChanges,
    target: Target,
    rows: pa.Schema,
    order_by: tuple[str, ...],
    kafka: frozenset[str],
) -> Changes:
    """Return changes without the envelope. The table gets no column of it, except to compare late rows."""
    decoded = {name.lower() for name in target.schema.names}
    in_query = {name.lower() for name in rows.names}
    dropped = [
        name for name in changes.drop_columns if name.lower() in decoded or name.lower() not in in_query
    ]
    needed = {name.lower() for name in order_by} if changes.late_rows == "ignore" else set()
    own = (*_OWN, *([TIME] if target.has_time else []))
    for name in (*own, *(name for name in target.passed.names if name in kafka)):
        if name.lower() not in needed and name.lower() not in {one.lower() for one in dropped}:
            dropped.append(name)
    return changes.of_rows(
        keys=target.keys, order_by=order_by, delete_when=DELETED, drop_columns=tuple(dropped)
    )
