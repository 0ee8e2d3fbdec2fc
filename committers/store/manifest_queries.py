"""SQL of manifests and dead letters, with their counts. Callers hold the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ..contract import AbortedBy, Batch, DeadLetter, Manifest, ManifestRecord, ManifestState, StreamKey
from ..dead_letters import OF_DESTINATION
from ..deliveries.contract import Backlog
from ..lineage import stored
from .queries import columns_of, fields_in, insert_into, storable
from .tables import IS_PREPARED, contents, dead_letters, lineage, manifests, streams

# Statements needed for every batch are built once: building them costs as much as running them.
_BATCH = sa.bindparam("given_batch", type_=sa.BigInteger)
_VERSION = sa.bindparam("given_version", type_=sa.BigInteger)
_DROPPED = sa.bindparam("given_dropped", type_=sa.BigInteger)
_GIVEN_BATCH = sa.and_(manifests.c.stream_id == sa.bindparam("given_stream"), manifests.c.batch_id == _BATCH)
_FIND_MANIFEST = sa.select(manifests).where(_GIVEN_BATCH)
_PUT_MANIFEST = sa.insert(manifests)
_PUT_CONTENT = sa.insert(contents)
_PUT_LINEAGE = sa.insert(lineage)
_UPDATE_PREPARED = sa.update(manifests).where(
    _GIVEN_BATCH,
    manifests.c.digest == sa.bindparam("given_digest"),
    manifests.c.state == ManifestState.PREPARED.value,
)
_UPDATE_FREE = _UPDATE_PREPARED.where(manifests.c.delivery_id.is_(None))


REFUSED: sa.ColumnElement[int] = (
    sa.select(sa.func.count())
    .select_from(dead_letters)
    .where(dead_letters.c.stream_id == manifests.c.stream_id, dead_letters.c.batch_id == manifests.c.batch_id)
    .where(sa.or_(*(dead_letters.c.letter_id.startswith(f"{stage}-") for stage in OF_DESTINATION)))
    .correlate(manifests)
    .scalar_subquery()
)
"""How many of a manifest's rows are dead letters that the destination has refused."""


def _sum(total: sa.Column[Any], added: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    return total + sa.select(added).where(_GIVEN_BATCH).scalar_subquery()


_ROWS = manifests.c.rows - sa.case((REFUSED > _DROPPED, REFUSED), else_=_DROPPED)

_COUNT_COMMITTED = (
    sa.update(streams)
    .where(streams.c.id == sa.bindparam("given_stream"))
    .values(
        committed_batches=streams.c.committed_batches + 1,
        committed_rows=_sum(streams.c.committed_rows, _ROWS),
        committed_bytes=_sum(streams.c.committed_bytes, manifests.c.size_bytes),
        table_version=sa.func.coalesce(_VERSION, streams.c.table_version),
        table_batch_id=sa.case((_VERSION.is_(None), streams.c.table_batch_id), else_=_BATCH),
    )
)


def find_manifest(connection: Connection, stream_id: int, batch_id: int) -> Row[Any] | None:
    given = {"given_stream": stream_id, "given_batch": batch_id}
    return connection.execute(_FIND_MANIFEST, given).one_or_none()


def is_followed(connection: Connection, stream_id: int, batch_id: int) -> bool:
    """Return True if a later batch is prepared or committed."""
    behind = (manifests.c.stream_id == stream_id, manifests.c.batch_id > batch_id)
    are_kept = sa.exists().where(*behind, manifests.c.state != ManifestState.ABORTED.value)
    return bool(connection.scalar(sa.select(are_kept)))


def delete_manifest(connection: Connection, stream_id: int, batch_id: int) -> None:
    for table in (contents, dead_letters, lineage, manifests):
        connection.execute(sa.delete(table).filter_by(stream_id=stream_id, batch_id=batch_id))


def put_manifest(
    connection: Connection, stream_id: int, manifest: Manifest, checksum: str, run_id: str, now: datetime
) -> ManifestRecord:
    """Insert a PREPARED manifest and return its record."""
    key = {"stream_id": stream_id, "batch_id": manifest.batch.batch_id}
    row = {
        **key,
        "state": ManifestState.PREPARED.value,
        "digest": manifest.batch.digest,
        **columns_of(manifest),
        "content_sha256": checksum,
        "run_id": run_id,
        "planned_at": manifest.planned_at,
        "written_at": manifest.written_at,
        "prepared_at": now,
        "reason": "",
    }
    connection.execute(_PUT_MANIFEST, row)
    connection.execute(_PUT_CONTENT, {**key, "content": manifest.content})
    put_dead_letters(connection, stream_id, manifest.batch.batch_id, manifest.dead_letters)
    if ranges := stored(manifest.sources):
        connection.execute(_PUT_LINEAGE, {**key, "ranges": ranges})
    return ManifestRecord(
        batch=manifest.batch,
        state=ManifestState.PREPARED,
        kind=manifest.kind,
        version=manifest.version,
        files=manifest.files,
        rows=manifest.rows,
        size_bytes=manifest.size_bytes,
        run_id=run_id,
        prepared_at=now.astimezone(timezone.utc),
        planned_at=manifest.planned_at,
        written_at=manifest.written_at,
    )


def put_dead_letters(
    connection: Connection, stream_id: int, batch_id: int, letters: Sequence[DeadLetter]
) -> None:
    """Insert dead letters, except those that are stored already."""
    if not letters:
        return
    values = [
        {
            "stream_id": stream_id,
            "batch_id": batch_id,
            "letter_id": letter.letter_id,
            "row_id": storable(letter.row_id),
            "code": storable(letter.code),
            "message": storable(letter.message),
            "refused_at": letter.refused_at,
            "content": letter.content,
        }
        for letter in letters
    ]
    connection.execute(insert_into(connection, dead_letters).on_conflict_do_nothing(), values)


def update_prepared(
    connection: Connection, stream_id: int, batch: Batch, values: dict[str, Any], *, only_free: bool = False
) -> bool:
    """Compare-and-set on (batch, digest, PREPARED).

    Args:
        only_free: also require that the batch is in no delivery
    """
    given = {"given_stream": stream_id, "given_batch": batch.batch_id, "given_digest": batch.digest}
    update = _UPDATE_FREE if only_free else _UPDATE_PREPARED
    return connection.execute(update, {**given, **values}).rowcount == 1


def abort_from(connection: Connection, stream_id: int, batch_id: int, now: datetime, reason: str) -> bool:
    """Abort this batch and all later PREPARED ones; return False if one of them is being delivered.

    This overrides operator actions on later batches: they followed rows that are now written again.
    """
    are_waiting = (manifests.c.stream_id == stream_id, IS_PREPARED, manifests.c.batch_id >= batch_id)
    taken = sa.select(sa.func.count()).where(*are_waiting, manifests.c.delivery_id.is_not(None))
    if connection.scalar(taken):
        return False
    values = aborted(now, AbortedBy.REPLAY, reason)
    connection.execute(sa.update(manifests).where(*are_waiting).values(values))
    are_skipped = (
        manifests.c.stream_id == stream_id,
        manifests.c.batch_id > batch_id,
        manifests.c.aborted_by == AbortedBy.SKIP.value,
    )
    changed = {key: values[key] for key in ("aborted_by", "reason")}
    connection.execute(sa.update(manifests).where(*are_skipped).values(changed))
    return True


def aborted(now: datetime, by: AbortedBy, reason: str) -> dict[str, Any]:
    """Column values of a record that becomes ABORTED."""
    return {
        "state": ManifestState.ABORTED.value,
        "aborted_by": by.value,
        "finished_at": now,
        "table_version": None,
        "reason": storable(reason),
    }


def count_committed(
    connection: Connection, stream_id: int, batch_id: int, table_version: int | None, dropped_rows: int
) -> None:
    """Count a batch that was just marked COMMITTED, without the rows that were refused, and store the table
    version that contains it, if known. Its dead letters are stored already.
    """
    given = {"given_stream": stream_id, "given_batch": batch_id, "given_version": table_version}
    connection.execute(_COUNT_COMMITTED, {**given, "given_dropped": dropped_rows})


def to_record(stream: StreamKey, row: Row[Any]) -> ManifestRecord:
    # A driver of an earlier version that is still running during the store's upgrade sets only the state.
    default = AbortedBy.REPLAY if row.state == ManifestState.ABORTED.value else None
    values = {
        **fields_in(row, ManifestRecord),
        "state": ManifestState(row.state),
        "aborted_by": default if row.aborted_by is None else AbortedBy(row.aborted_by),
    }
    return ManifestRecord(batch=Batch(stream, row.batch_id, row.digest), **values)


def backlog(
    connection: Connection, is_of_stream: sa.ColumnElement[bool], limit: int | None = None
) -> Backlog:
    """All PREPARED batches, or the oldest `limit` of them, including those in a delivery."""
    chosen = sa.select(*_COUNTED, manifests.c.prepared_at).where(is_of_stream, IS_PREPARED)
    if limit is not None:
        chosen = chosen.order_by(manifests.c.batch_id).limit(limit)
    some = chosen.subquery()
    sums = (sa.func.coalesce(sa.func.sum(some.c[column.name]), 0) for column in _COUNTED)
    query = sa.select(sa.func.count(), *sums, sa.func.min(some.c.prepared_at)).select_from(some)
    batches, files, rows, size_bytes, oldest = connection.execute(query).one()
    # Postgres returns the sum of integers as a decimal.
    return Backlog(batches, int(files), int(rows), int(size_bytes), oldest)


_COUNTED = (manifests.c.files, manifests.c.rows, manifests.c.size_bytes)


def backlogs(
    connection: Connection, ids: sa.Select[tuple[int]] | None = None, since: int | None = None
) -> dict[int, Backlog]:
    """The PREPARED batches of all streams that have some, or of these, by the number of the stream. The cost
    depends on the number of PREPARED batches.

    Args:
        since: only this batch and later ones
    """
    sums = (sa.func.sum(column) for column in _COUNTED)
    query = sa.select(
        manifests.c.stream_id, sa.func.count(), *sums, sa.func.min(manifests.c.prepared_at)
    ).where(IS_PREPARED)
    if ids is not None:
        query = query.where(manifests.c.stream_id.in_(ids))
    if since is not None:
        query = query.where(manifests.c.batch_id >= since)
    return {
        stream_id: Backlog(batches, int(files), int(rows), int(size_bytes), oldest)
        for stream_id, batches, files, rows, size_bytes, oldest in connection.execute(
            query.group_by(manifests.c.stream_id)
        )
    }
