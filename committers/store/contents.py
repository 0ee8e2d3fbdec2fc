"""Manifests with their contents, checked against the checksums written with them.

What clean-up has to know comes from here: which files a batch or a delivery may still need. A batch that went
into the table with a delivery names files by its own manifest until the sources of the delivery are removed;
one of a delivery that did not rewrite its files names none: the delivery's manifest has them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ..contract import Batch, Manifest, ManifestState, StreamKey
from ..errors import ManifestCorruptError
from . import queries
from .database import Database
from .delivery_queries import DeliveryRecord
from .tables import IS_PREPARED, IS_UNFINISHED, contents, deliveries, manifests

_BATCHES = sa.select(manifests, contents.c.content, deliveries.c.sources_removed_at).select_from(
    manifests.outerjoin(
        contents,
        sa.and_(contents.c.stream_id == manifests.c.stream_id, contents.c.batch_id == manifests.c.batch_id),
    ).outerjoin(deliveries, deliveries.c.id == manifests.c.delivery_id)
)
"""Manifests with their content, which is NULL where it got lost, or went with the delivery's sources."""

_HAS_NAMES = sa.case(
    (deliveries.c.state == ManifestState.COMMITTED.value, deliveries.c.is_compacted), else_=sa.true()
)
"""False for a batch whose files the manifest of its delivery names."""


def of_batch(database: Database, stream: StreamKey, batch_id: int) -> Manifest | None:
    """The batch's own manifest; None if there is none, or its content went with the delivery's sources.

    Raises:
        ManifestCorruptError: the content is not what was written.
    """
    query = _BATCHES.where(queries.of_stream(stream), manifests.c.batch_id == batch_id)
    with database.read() as connection:
        row = connection.execute(query).one_or_none()
    return None if row is None or _is_removed(row) else checked(database, stream, row)


def in_state(database: Database, stream: StreamKey, state: ManifestState) -> Iterator[Manifest]:
    """The batches' own manifests in ascending order, then those of deliveries, with `merged` left empty.

    One in memory, and no transaction held between two.

    Raises:
        ManifestCorruptError: the content is not what was written.
    """
    is_in_state = IS_PREPARED if state is ManifestState.PREPARED else manifests.c.state == state.value
    if state is ManifestState.COMMITTED:
        is_in_state = sa.and_(is_in_state, _HAS_NAMES, deliveries.c.sources_removed_at.is_(None))
    yield from _own(database, stream, is_in_state)
    if state is not ManifestState.ABORTED:  # no name of an abandoned delivery matters
        yield from _of_deliveries(database, stream, state)


def of_delivery(database: Database, delivery: DeliveryRecord) -> Iterator[Manifest]:
    """The own manifests of the batches of a delivery, oldest first, until its sources are removed."""
    in_range = manifests.c.batch_id.between(delivery.first_batch_id, delivery.last_batch_id)
    is_its = sa.and_(in_range, manifests.c.delivery_id == delivery.delivery_id)
    yield from _own(database, delivery.stream, sa.and_(is_its, deliveries.c.sources_removed_at.is_(None)))


def _own(database: Database, stream: StreamKey, chosen: sa.ColumnElement[bool]) -> Iterator[Manifest]:
    query = _BATCHES.where(queries.of_stream(stream), chosen)
    for row in _one_by_one(database, query, manifests.c.batch_id):
        yield checked(database, stream, row)


def _of_deliveries(database: Database, stream: StreamKey, state: ManifestState) -> Iterator[Manifest]:
    is_in_state = IS_UNFINISHED if state is ManifestState.PREPARED else deliveries.c.state == state.value
    query = sa.select(deliveries).where(queries.is_delivery_of(stream), is_in_state)
    for row in _one_by_one(database, query, deliveries.c.id):
        yield checked_delivery(database, stream, row)


def _one_by_one(database: Database, query: sa.Select[Any], number: sa.Column[int]) -> Iterator[Row[Any]]:
    """By ascending number, each in a transaction of its own: contents are large, and callers take time."""
    query, after = query.order_by(number).limit(1), sa.true()
    while True:
        with database.read() as connection:
            row = connection.execute(query.where(after)).one_or_none()
        if row is None:
            return
        after = number > getattr(row, number.key)
        yield row


def checked(database: Database, stream: StreamKey, row: Row[Any]) -> Manifest:
    """A batch's own manifest."""
    if not _is_whole(row):
        raise _corrupt(database, stream, f"batch {row.batch_id} ({row.state})", row)
    return _manifest(Batch(stream, row.batch_id, row.digest), row, ())


def checked_delivery(
    database: Database, stream: StreamKey, row: Row[Any], merged: tuple[Batch, ...] = ()
) -> Manifest:
    """The manifest of a delivery."""
    if not _is_whole(row):
        batches = f"batches {row.first_batch_id} to {row.last_batch_id}"
        raise _corrupt(database, stream, f"delivery {row.id} ({batches}, {row.state})", row)
    return _manifest(Batch(stream, row.last_batch_id, row.digest), row, merged)


def _manifest(batch: Batch, row: Row[Any], merged: tuple[Batch, ...]) -> Manifest:
    return Manifest(
        batch=batch,
        kind=row.kind,
        version=row.version,
        content=row.content,
        files=row.files,
        rows=row.rows,
        size_bytes=row.size_bytes,
        is_empty=row.is_empty,
        oldest_event_at=row.oldest_event_at,
        merged=merged,
    )


def _is_removed(row: Row[Any]) -> bool:
    return row.content is None and row.sources_removed_at is not None


def _is_whole(row: Row[Any]) -> bool:
    return row.content is not None and hashlib.sha256(row.content).hexdigest() == row.content_sha256


def _corrupt(database: Database, stream: StreamKey, what: str, row: Row[Any]) -> ManifestCorruptError:
    problem = "its content is gone" if row.content is None else "its content is not what was written"
    return ManifestCorruptError(
        f"The manifest of {what} of the stream {stream} in the store {database.name} is damaged: {problem}. "
        "Restore the store from a backup, then start the query again; until then run no clean-up, which "
        "could not tell which files the manifest names."
    )
