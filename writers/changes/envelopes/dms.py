"""Changes of AWS Database Migration Service: JSON messages, and rows with a column `Op`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from .events import TIME_TYPE, Events, sequence_of
from .formats import Context, equals, is_missing, refuse
from .messages import Column, Messages, Path

OPERATION = "Op"
BEFORE_PREFIX = "BI_"
"""Of columns with the values before a change: the default of the setting BeforeImageSettings."""


@dataclass(frozen=True, slots=True)
class Dms:
    """See `Format`."""

    name: ClassVar[str] = "dms"
    metadata: ClassVar[Mapping[Path, pa.DataType]] = {
        ("metadata", "operation"): pa.string(),
        ("metadata", "record-type"): pa.string(),
        ("metadata", "timestamp"): pa.string(),
        ("metadata", "transaction-record-id"): pa.int64(),
    }
    flat_metadata: ClassVar[Mapping[Path, pa.DataType]] = {}
    after: ClassVar[Path] = ("data",)
    before: ClassVar[Path] = ("before-image",)
    flat_marker: ClassVar[str | None] = None

    def events(self, messages: Messages, context: Context) -> Events:
        return _flat_events(messages, context) if messages.is_flat else _events(messages, context)


def _events(messages: Messages, context: Context) -> Events:
    operation, target = messages.text("metadata", "operation"), context.target
    ignored = equals(messages.text("metadata", "record-type"), "control")
    is_data = pc.invert(ignored)
    upserts = pc.and_(is_data, equals(operation, "load", "insert", "update"))
    deletes = pc.and_(is_data, equals(operation, "delete"))
    refuse(
        pc.invert(pc.or_(pc.or_(upserts, deletes), ignored)),
        "A message is no change of AWS DMS: its field metadata.operation is not load, insert, update or "
        "delete.",
    )
    refuse(
        pc.and_(pc.invert(ignored), pc.invert(messages.fields.has(("data",)))),
        "A message of AWS DMS has no field data.",
    )
    nothing = pa.nulls(len(ignored), pa.int64())
    time = messages.fields.column(("metadata", "timestamp"), TIME_TYPE).values
    if context.offset is not None:
        position, counter = context.offset, nothing
    else:
        position = time.cast(pa.int64())
        counter = messages.number("metadata", "transaction-record-id")
    refuse(
        pc.and_(is_data, is_missing(position, context)),
        "A message of AWS DMS has no place in the order: keep the column offset of Kafka in the query, or "
        "the field metadata.timestamp in the messages.",
    )
    after = messages.image(("data",), target.columns, context.given)
    old_keys = _old_keys(messages, ("before-image",), "", after, context)
    sequence = sequence_of(counter, equals(operation, "load"))
    return Events(messages, upserts, deletes, after, old_keys, position, sequence, time)


def _flat_events(messages: Messages, context: Context) -> Events:
    """Rows of a full load may have NULL in `Op`."""
    operation, target = messages.text(OPERATION), context.target
    is_load = pc.or_(pc.is_null(operation), equals(operation, ""))
    upserts, deletes = pc.or_(is_load, equals(operation, "I", "U")), equals(operation, "D")
    refuse(pc.invert(pc.or_(upserts, deletes)), "A row of AWS DMS has another Op than I, U and D.")
    nothing = pa.nulls(len(operation), pa.int64())
    position = nothing if context.offset is None else context.offset
    after = messages.image((), target.columns, context.given)
    old_keys = _old_keys(messages, (), BEFORE_PREFIX, after, context)
    sequence, time = sequence_of(nothing, is_load), pa.nulls(len(operation), TIME_TYPE)
    return Events(messages, upserts, deletes, after, old_keys, position, sequence, time)


def _old_keys(
    messages: Messages, path: Path, prefix: str, after: tuple[Column, ...], context: Context
) -> list[Column]:
    """Return the keys before the change, or those of the row if the message does not have them."""
    now = dict(zip(context.target.columns.names, after, strict=True))
    keys = []
    for column in context.target.key_columns:
        before = messages.fields.column((*path, prefix + column.name), column.type)
        keys.append(Column(pc.coalesce(before.values, now[column.name].values)))
    return keys
