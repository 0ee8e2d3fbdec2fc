"""SQL that all parts of the store use: streams and runs, and conditions. Callers hold the transaction."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Row

from ..contract import Manifest, StreamKey
from ..deliveries.contract import DeliveryState
from ..errors import RetryableError
from .tables import deliveries, manifests, runs, streams

REASON_CHARS_MAX = 4000

# Statements needed for every batch are built once: building them costs as much as running them.
_GIVEN_STREAM = sa.and_(
    streams.c.query_id == sa.bindparam("given_query"), streams.c.table_uri == sa.bindparam("given_table")
)
_LOCK_STREAM = sa.select(streams.c.id).where(_GIVEN_STREAM).with_for_update(key_share=True)
_HOLDER = sa.select(runs.c.run_id).join(streams).where(_GIVEN_STREAM).order_by(runs.c.fence.desc()).limit(1)
_CURRENT_RUN = (
    sa.select(runs)
    .where(runs.c.stream_id == sa.bindparam("given_stream"))
    .order_by(runs.c.fence.desc())
    .limit(1)
)


def _named(stream: StreamKey) -> dict[str, Any]:
    return {"given_query": stream.query_id, "given_table": stream.table_uri}


def is_stream(stream: StreamKey) -> sa.ColumnElement[bool]:
    return sa.and_(streams.c.query_id == stream.query_id, streams.c.table_uri == stream.table_uri)


def of_stream(stream: StreamKey) -> sa.ColumnElement[bool]:
    return manifests.c.stream_id == _id_of(stream)


def is_delivery_of(stream: StreamKey) -> sa.ColumnElement[bool]:
    return deliveries.c.stream_id == _id_of(stream)


def _id_of(stream: StreamKey) -> sa.ScalarSelect[int]:
    return sa.select(streams.c.id).where(is_stream(stream)).scalar_subquery()


def storable(reason: str) -> str:
    """Shorten the text and remove characters that Postgres or UTF-8 reject: reasons are often error messages
    of other software.
    """
    return reason[:REASON_CHARS_MAX].replace("\0", "").encode("utf-8", "replace").decode()


def insert_into(connection: Connection, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
    """Return an INSERT that can say what happens to a row that is there already."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    return insert(table)


# Streams and runs -----------------------------------------------------------------------------------


def lock_stream(connection: Connection, stream: StreamKey) -> int | None:
    """Lock the stream's row and return its id; None if the stream is unknown.

    On SQLite, the transaction has already locked the whole database.
    """
    return connection.scalar(_LOCK_STREAM, _named(stream))


def lock_known_stream(connection: Connection, stream: StreamKey, store_name: str) -> int:
    """Same as `lock_stream`, for a stream that must be known.

    Raises:
        RetryableError: the stream is unknown.
    """
    stream_id = lock_stream(connection, stream)
    if stream_id is None:
        raise RetryableError(
            f"The manifest store {store_name} does not know the stream {stream}: the store was deleted or "
            "replaced while the query ran. Start the query again."
        )
    return stream_id


def lock_stream_of_delivery(connection: Connection, delivery_id: int) -> None:
    owner = sa.select(deliveries.c.stream_id).where(deliveries.c.id == delivery_id).scalar_subquery()
    connection.execute(sa.select(streams.c.id).where(streams.c.id == owner).with_for_update(key_share=True))


def update_stream(connection: Connection, stream_id: int, values: dict[str, Any]) -> None:
    connection.execute(sa.update(streams).where(streams.c.id == stream_id).values(values))


def current_run(connection: Connection, stream_id: int) -> Row[Any] | None:
    return connection.execute(_CURRENT_RUN, {"given_stream": stream_id}).one_or_none()


def holder(connection: Connection, stream: StreamKey) -> str | None:
    """The run with the highest fence. Takes no lock."""
    return connection.scalar(_HOLDER, _named(stream))


def is_known_run(connection: Connection, stream_id: int, run_id: str) -> bool:
    query = sa.select(runs.c.fence).where(runs.c.stream_id == stream_id, runs.c.run_id == run_id)
    return connection.scalar(query) is not None


def put_run(connection: Connection, stream_id: int, fence: int, run_id: str, now: datetime) -> None:
    values = {"stream_id": stream_id, "fence": fence, "run_id": run_id, "claimed_at": now}
    connection.execute(sa.insert(runs).values(values))


def to_delivery_state(row: Row[Any]) -> DeliveryState:
    return DeliveryState(**fields_in(row, DeliveryState), isolate_until=row.isolate_until)


def fields_in(row: Row[Any], kind: Any) -> dict[str, Any]:
    """Return the columns of the row that are fields of a dataclass of the same name."""
    return {name: getattr(row, name) for name in _names_in(kind, row._fields)}


def columns_of(manifest: Manifest) -> dict[str, Any]:
    """Return the columns that a batch and a delivery have of their manifest."""
    return {column: getattr(manifest, column) for column in _OF_A_MANIFEST}


_OF_A_MANIFEST = ("kind", "version", "files", "rows", "size_bytes", "is_empty", "oldest_event_at")


@lru_cache
def _names_in(kind: Any, columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind) if field.name in columns)
