"""Messages of Debezium: its envelope, and the flat form of its transform ExtractNewRecordState."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from .events import Events, sequence_of, time_of
from .formats import Context, equals, is_missing, refuse
from .messages import Messages, Path
from .positions import Position, binlog_position, sql_server_position

_SOURCE: Mapping[str, pa.DataType] = {
    "lsn": pa.int64(),
    "file": pa.string(),
    "pos": pa.int64(),
    "row": pa.int64(),
    "commit_lsn": pa.string(),
    "scn": pa.string(),
    "ord": pa.int64(),
    "ts_ms": pa.int64(),
    "snapshot": pa.string(),
}
FLAT_PREFIXES = ("__", "__source_")
DELETED = "__deleted"


@dataclass(frozen=True, slots=True)
class Debezium:
    """See `Format`."""

    name: ClassVar[str] = "debezium"
    metadata: ClassVar[Mapping[Path, pa.DataType]] = {
        ("op",): pa.string(),
        ("ts_ms",): pa.int64(),
        ("status",): pa.string(),
        ("ddl",): pa.string(),
        **{("source", name): kind for name, kind in _SOURCE.items()},
    }
    flat_metadata: ClassVar[Mapping[Path, pa.DataType]] = {
        (DELETED,): pa.string(),
        ("__op",): pa.string(),
        **{(prefix + name,): kind for name, kind in _SOURCE.items() for prefix in FLAT_PREFIXES},
    }
    after: ClassVar[Path] = ("after",)
    before: ClassVar[Path] = ("before",)
    flat_marker: ClassVar[str | None] = DELETED

    def events(self, messages: Messages, context: Context) -> Events:
        return _flat_events(messages, context) if messages.is_flat else _events(messages, context)


def _events(messages: Messages, context: Context) -> Events:
    op, target = messages.text("op"), context.target
    has_before, has_after = messages.fields.has(("before",)), messages.fields.has(("after",))
    upserts, deletes = equals(op, "c", "r", "u"), equals(op, "d")
    about_nothing = pc.invert(pc.or_(has_before, has_after))
    other = reduce(
        pc.or_, [messages.fields.has((name,)) for name in ("status", "ddl", "ts_ms")]
    )  # boundaries of transactions, changes of schemas, heartbeats
    ignored = pc.or_(equals(op, "m"), pc.and_(pc.and_(pc.is_null(op), about_nothing), other))
    refuse(
        equals(op, "t"),
        "A message of Debezium is a TRUNCATE (op t), which deletes no key. Leave it out with the connector's "
        "skipped.operations=t, and empty the table yourself.",
    )
    known = pc.or_(pc.or_(upserts, deletes), ignored)
    refuse(
        pc.invert(known),
        "A message is no change event of Debezium: its field op is not c, r, u or d. If the messages are "
        "flattened by ExtractNewRecordState, set its delete.tombstone.handling.mode to rewrite, which adds "
        "__deleted.",
    )
    refuse(
        pc.and_(upserts, pc.invert(has_after)),
        "A message of Debezium inserts or updates a row and has no after. For MongoDB, set the connector's "
        "capture.mode to change_streams_update_full.",
    )
    source = {name: messages.fields.column(("source", name), _type(name)).values for name in _SOURCE}
    source["ts_ms"] = pc.coalesce(source["ts_ms"], messages.number("ts_ms"))
    position, sequence = _order(source, equals(op, "r"), pc.or_(upserts, deletes), context)
    after = messages.image(("after",), target.columns, context.given)
    before = messages.image(("before",), target.key_columns, context.given)
    time = time_of(source["ts_ms"])
    return Events(messages, upserts, deletes, after, before, position, sequence, time)


def _flat_events(messages: Messages, context: Context) -> Events:
    target, fields = context.target, messages.fields
    deletes = fields.column((DELETED,), pa.bool_()).values
    refuse(
        pc.is_null(deletes),
        "A message does not have __deleted, which ExtractNewRecordState adds with "
        "delete.tombstone.handling.mode=rewrite.",
    )
    source = {
        name: pc.coalesce(*[fields.column((prefix + name,), _type(name)).values for prefix in FLAT_PREFIXES])
        for name in _SOURCE
    }
    op = messages.text("__op")
    position, sequence = _order(source, equals(op, "r"), pc.is_valid(deletes), context)
    after = messages.image((), target.columns, context.given)
    old_keys = messages.image((), target.key_columns, context.given)
    time = time_of(source["ts_ms"])
    return Events(messages, pc.invert(deletes), deletes, after, old_keys, position, sequence, time)


def _type(name: str) -> pa.DataType:
    return pa.int64() if name == "scn" else _SOURCE[name]


def _order(
    source: Mapping[str, pa.Array], is_read: pa.Array, is_change: pa.Array, context: Context
) -> tuple[pa.Array, pa.Array]:
    """Return positions and sequences, from the first of these that a message has: the log sequence number of
    Postgres, file and position in the binary log of MySQL, those of SQL Server and Oracle, the time in the
    source and its counter in MongoDB.

    Args:
        is_change: which messages need a position
    """
    offset = context.offset
    nothing = pa.nulls(len(is_read), pa.int64())
    tie = nothing if offset is None else offset
    candidates = [
        Position(source["lsn"], tie),
        binlog_position(source["file"], source["pos"], source["row"]),
        sql_server_position(source["commit_lsn"], tie),
        Position(source["scn"], tie),
        Position(source["ts_ms"], pc.coalesce(source["ord"], tie)),
        Position(tie, nothing),
    ]
    position, counter = Position.first(candidates)
    refuse(
        pc.and_(is_change, is_missing(position, context)),
        "A message of Debezium has no place in the order: neither source.lsn, source.file and source.pos, "
        "source.commit_lsn, source.scn nor source.ts_ms, and the query has no column offset. With "
        "ExtractNewRecordState, add.fields adds them.",
    )
    snapshot = source["snapshot"]
    is_snapshot = pc.or_(
        is_read, pc.and_(pc.is_valid(snapshot), pc.invert(equals(snapshot, "false", "FALSE")))
    )
    return position, sequence_of(counter, is_snapshot)
