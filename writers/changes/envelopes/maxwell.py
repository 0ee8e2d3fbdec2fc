"""Messages of Maxwell's daemon, which reads MySQL's binary log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.arrow_values import numeric_scalar
from .events import Events, sequence_of, time_of
from .formats import Context, equals, is_missing, refuse
from .messages import Column, Messages, Path
from .positions import Position, binlog_position

_LAST = numeric_scalar(2**40)
"""The counter of the last row of a transaction, which has `commit` in place of `xoffset`."""
_MILLISECONDS = numeric_scalar(1000)


@dataclass(frozen=True, slots=True)
class Maxwell:
    """See `Format`."""

    name: ClassVar[str] = "maxwell"
    metadata: ClassVar[Mapping[Path, pa.DataType]] = {
        ("type",): pa.string(),
        ("ts",): pa.int64(),
        ("position",): pa.string(),
        ("xoffset",): pa.int64(),
        ("commit",): pa.bool_(),
    }
    flat_metadata: ClassVar[Mapping[Path, pa.DataType]] = {}
    after: ClassVar[Path] = ("data",)
    before: ClassVar[Path] = ("old",)
    flat_marker: ClassVar[str | None] = None

    def events(self, messages: Messages, context: Context) -> Events:
        kind, target = messages.text("type"), context.target
        upserts = equals(kind, "insert", "update", "bootstrap-insert")
        deletes = equals(kind, "delete")
        is_change = pc.or_(upserts, deletes)
        about_schema = pc.match_substring_regex(pc.fill_null(kind, ""), "^(table|database)-")
        known = pc.or_(is_change, pc.or_(about_schema, equals(kind, "bootstrap-start", "bootstrap-complete")))
        refuse(pc.invert(known), "A message is no change of Maxwell: its field type is not known.")
        refuse(
            pc.and_(is_change, pc.invert(messages.fields.has(("data",)))),
            "A message of Maxwell has no field data.",
        )
        position, counter = _order(messages, context)
        refuse(
            pc.and_(is_change, is_missing(position, context)),
            "A message of Maxwell has no place in the order: keep the column offset of Kafka in the query, "
            "or run Maxwell with output_binlog_position=true.",
        )
        after = messages.image(("data",), target.columns, context.given)
        old = messages.image(("old",), target.key_columns, context.given)  # only what has changed
        data = dict(zip(target.columns.names, after, strict=True))
        old_keys = [
            Column(pc.coalesce(column.values, data[name].values))
            for name, column in zip(target.keys, old, strict=True)
        ]
        time = time_of(pc.multiply(messages.number("ts"), _MILLISECONDS))
        sequence = sequence_of(counter)
        return Events(messages, upserts, deletes, after, old_keys, position, sequence, time)


def _order(messages: Messages, context: Context) -> tuple[pa.Array, pa.Array]:
    """Return positions and counters. Kafka's offset comes first: not all messages have a position."""
    nothing = pa.nulls(len(messages.fields), pa.int64())
    if context.offset is not None:
        return context.offset, nothing
    parts = pc.extract_regex(messages.text("position"), r"^(?P<file>.+):(?P<offset>\d+)$")
    offset = pc.struct_field(parts, [1]).cast(pa.int64())
    commit = messages.fields.column(("commit",), pa.bool_()).values
    is_last = pc.fill_null(commit, False)
    counter = pc.coalesce(messages.number("xoffset"), pc.if_else(is_last, _LAST, nothing))
    return Position.first([binlog_position(pc.struct_field(parts, [0]), offset, counter)])
