"""Reads manifests with their content and verifies the checksums.

Clean-up uses this module to find out which files a batch or a delivery may still need. A batch that was
committed in a delivery with rewritten files is listed with its own files until these source files are
removed. If the delivery did not rewrite files, only the manifest of the delivery lists them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from ..contract import Batch, Manifest, ManifestState, StreamKey
from ..errors import ManifestCorruptError
from ..lineage import SourceRange, of_stored
from . import queries
from .database import Database
from .delivery_queries import DeliveryRecord
from .tables import IS_PREPARED, IS_UNFINISHED, contents, deliveries, lineage, manifests

_WITH_CONTENTS = manifests.outerjoin(
    contents,
    sa.and_(contents.c.stream_id == manifests.c.stream_id, contents.c.batch_id == manifests.c.batch_id),
)
_BATCHES = sa.select(
    manifests, contents.c.content, lineage.c.ranges, deliveries.c.sources_removed_at
).select_from(
    _WITH_CONTENTS.outerjoin(
        lineage,
        sa.and_(lineage.c.stream_id == manifests.c.stream_id, lineage.c.batch_id == manifests.c.batch_id),
    ).outerjoin(deliveries, deliveries.c.id == manifests.c.delivery_id)
)
"""Manifests joined with their content. The content is NULL if it is lost or was deleted with the source files
of a delivery.
"""

_HAS_NAMES = sa.case(
    (deliveries.c.state == ManifestState.COMMITTED.value, deliveries.c.is_compacted), else_=sa.true()
)
"""False if the files of the batch are listed by the manifest of its delivery."""


def of_batch(database: Database, stream: StreamKey, batch_id: int) -> Manifest | None:
    """Return the batch's own manifest; None if there is none or if its content was deleted with the source
    files.

    Raises:
        ManifestCorruptError: the content does not match its checksum.
    """
    row = database.row(_BATCHES.where(queries.of_stream(stream), manifests.c.batch_id == batch_id))
    return None if row is None or _is_removed(row) else checked(database, stream, row)


def of_batches(
    database: Database, stream: StreamKey, batch_ids: Sequence[int], bytes_max: int
) -> Iterator[Manifest]:
    """Yield `of_batch` of several batches in ascending order, read with one statement: of the first one, and
    of as many more as have at most `bytes_max` bytes together.
    """
    are_given = (queries.of_stream(stream), manifests.c.batch_id.in_(batch_ids))
    size = sa.func.coalesce(sa.func.length(contents.c.content), 0)
    up_to = sa.func.sum(size).over(order_by=manifests.c.batch_id).label("up_to")
    sizes = sa.select(manifests.c.batch_id, up_to).select_from(_WITH_CONTENTS).where(*are_given).subquery()
    fits = sa.or_(sizes.c.up_to <= bytes_max, sizes.c.batch_id == batch_ids[0])
    query = _BATCHES.where(*are_given, manifests.c.batch_id.in_(sa.select(sizes.c.batch_id).where(fits)))
    rows = database.rows(query.order_by(manifests.c.batch_id))
    return (checked(database, stream, row) for row in rows if not _is_removed(row))


def _is_removed(row: Row[Any]) -> bool:
    return row.content is None and row.sources_removed_at is not None


def in_state(database: Database, stream: StreamKey, state: ManifestState) -> Iterator[Manifest]:
    """Yield the batches' own manifests in ascending order, then those of deliveries, with `merged` left
    empty.

    Only one manifest is in memory at a time, and no transaction stays open between two of them.

    Raises:
        ManifestCorruptError: the content does not match its checksum.
    """
    is_in_state = IS_PREPARED if state is ManifestState.PREPARED else manifests.c.state == state.value
    if state is ManifestState.COMMITTED:
        is_in_state = sa.and_(is_in_state, _HAS_NAMES, deliveries.c.sources_removed_at.is_(None))
    yield from _own(database, stream, is_in_state)
    if state is not ManifestState.ABORTED:  # files of an abandoned delivery are not needed
        yield from _of_deliveries(database, stream, state)


def of_delivery(database: Database, delivery: DeliveryRecord) -> Iterator[Manifest]:
    """Yield the own manifests of a delivery's batches, oldest first, until its source files are removed."""
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
    """Yield rows in ascending order, each read in its own transaction: contents are large and callers are
    slow.
    """
    query, after = query.order_by(number).limit(1), sa.true()
    while True:
        row = database.row(query.where(after))
        if row is None:
            return
        after = number > getattr(row, number.key)
        yield row


def checked(database: Database, stream: StreamKey, row: Row[Any]) -> Manifest:
    """Return a batch's own manifest after verifying its checksum."""
    if not _is_whole(row):
        raise _corrupt(database, stream, f"batch {row.batch_id} ({row.state})", row)
    batch, read = Batch(stream, row.batch_id, row.digest), of_stored(row.ranges)
    return Manifest(batch=batch, sources=read, **queries.fields_in(row, Manifest))


def checked_delivery(
    database: Database,
    stream: StreamKey,
    row: Row[Any],
    merged: tuple[Batch, ...] = (),
    sources: tuple[SourceRange, ...] = (),
) -> Manifest:
    """Return the manifest of a delivery after verifying its checksum."""
    if not _is_whole(row):
        batches = f"batches {row.first_batch_id} to {row.last_batch_id}"
        raise _corrupt(database, stream, f"delivery {row.id} ({batches}, {row.state})", row)
    batch = Batch(stream, row.last_batch_id, row.digest)
    return Manifest(batch=batch, merged=merged, sources=sources, **queries.fields_in(row, Manifest))


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_whole(row: Row[Any]) -> bool:
    return row.content is not None and sha256_of(row.content) == row.content_sha256


def _corrupt(database: Database, stream: StreamKey, what: str, row: Row[Any]) -> ManifestCorruptError:
    problem = "its content is missing" if row.content is None else "its content does not match its checksum"
    return ManifestCorruptError(
        f"The manifest of {what} of the stream {stream} in the store {database.name} is damaged: {problem}. "
        "Restore the store from a backup, then start the query again. Do not run `penstock gc` until then: "
        "it cannot know which files the manifest lists."
    )
