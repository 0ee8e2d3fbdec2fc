"""SQL of the manifest store. Callers hold the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Row

from ..contract import (
    BATCH_WRITE_PREFIX,
    AbortedBy,
    Batch,
    DeadLetter,
    Manifest,
    ManifestRecord,
    ManifestState,
    StreamKey,
)
from ..deliveries.contract import Backlog, DeliveryState
from ..errors import RetryableError
from .tables import IS_PREPARED, contents, dead_letters, deliveries, manifests, runs, streams

REASON_CHARS_MAX = 4000

# Statements needed for every batch are built once: building them costs as much as running them.
_BATCH = sa.bindparam("given_batch", type_=sa.BigInteger)
_VERSION = sa.bindparam("given_version", type_=sa.BigInteger)
_GIVEN_STREAM = sa.and_(
    streams.c.query_id == sa.bindparam("given_query"), streams.c.table_uri == sa.bindparam("given_table")
)
_GIVEN_BATCH = sa.and_(manifests.c.stream_id == sa.bindparam("given_stream"), manifests.c.batch_id == _BATCH)
_LOCK_STREAM = sa.select(streams.c.id).where(_GIVEN_STREAM).with_for_update(key_share=True)
_HOLDER = sa.select(runs.c.run_id).join(streams).where(_GIVEN_STREAM).order_by(runs.c.fence.desc()).limit(1)
_CURRENT_RUN = (
    sa.select(runs)
    .where(runs.c.stream_id == sa.bindparam("given_stream"))
    .order_by(runs.c.fence.desc())
    .limit(1)
)
_FIND_MANIFEST = sa.select(manifests).where(_GIVEN_BATCH)
_PUT_MANIFEST = sa.insert(manifests)
_PUT_CONTENT = sa.insert(contents)
_UPDATE_PREPARED = sa.update(manifests).where(
    _GIVEN_BATCH,
    manifests.c.digest == sa.bindparam("given_digest"),
    manifests.c.state == ManifestState.PREPARED.value,
)
_UPDATE_FREE = _UPDATE_PREPARED.where(manifests.c.delivery_id.is_(None))


def _sum(total: sa.Column[Any], column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    return total + sa.select(column).where(_GIVEN_BATCH).scalar_subquery()


_COUNT_COMMITTED = (
    sa.update(streams)
    .where(streams.c.id == sa.bindparam("given_stream"))
    .values(
        committed_batches=streams.c.committed_batches + 1,
        committed_rows=_sum(streams.c.committed_rows, manifests.c.rows),
        committed_bytes=_sum(streams.c.committed_bytes, manifests.c.size_bytes),
        table_version=sa.func.coalesce(_VERSION, streams.c.table_version),
        table_batch_id=sa.case((_VERSION.is_(None), streams.c.table_batch_id), else_=_BATCH),
    )
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


def others_of_table(stream: StreamKey) -> sa.Select[tuple[str, str, str, bool]]:
    has_pending = sa.exists().where(manifests.c.stream_id == streams.c.id, IS_PREPARED)
    return (
        sa.select(
            streams.c.query_id, streams.c.query_name, streams.c.settings, has_pending.label("has_pending")
        )
        .where(
            streams.c.table_uri == stream.table_uri,
            streams.c.query_id != stream.query_id,
            streams.c.query_id.not_like(f"{BATCH_WRITE_PREFIX}%"),
            sa.or_(streams.c.committed_batches > 0, has_pending),
        )
        .order_by(streams.c.id.desc())
    )


# Streams and runs -----------------------------------------------------------------------------------


def put_stream(
    connection: Connection,
    stream: StreamKey,
    kind: str,
    query_name: str,
    table_id: str,
    settings: str,
    now: datetime,
) -> None:
    """Insert or update the stream. A stream that has committed keeps its table id."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    is_free = sa.and_(streams.c.table_version.is_(None), sa.literal(bool(table_id)))
    kept_table = sa.case((is_free, table_id), else_=streams.c.table_id)
    nothing = DeliveryState()
    connection.execute(
        insert(streams)
        .values(
            query_id=stream.query_id,
            table_uri=stream.table_uri,
            kind=kind,
            query_name=query_name,
            created_at=now,
            table_id=table_id,
            committed_batches=0,
            committed_rows=0,
            committed_bytes=0,
            settings=settings,
            tries=nothing.tries,
            error=nothing.error,
            isolate_until=nothing.isolate_until,
            parked_by=nothing.parked_by,
            parked_why=nothing.parked_why,
            pruned_up_to=-1,
        )
        .on_conflict_do_update(
            index_elements=["query_id", "table_uri"],
            set_={
                "query_name": query_name,
                "table_id": kept_table,
                "settings": settings or streams.c.settings,
            },
        )
    )


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


# Manifests ------------------------------------------------------------------------------------------


def find_manifest(connection: Connection, stream_id: int, batch_id: int) -> Row[Any] | None:
    given = {"given_stream": stream_id, "given_batch": batch_id}
    return connection.execute(_FIND_MANIFEST, given).one_or_none()


def is_followed(connection: Connection, stream_id: int, batch_id: int) -> bool:
    """Return True if a later batch is prepared or committed."""
    behind = (manifests.c.stream_id == stream_id, manifests.c.batch_id > batch_id)
    are_kept = sa.exists().where(*behind, manifests.c.state != ManifestState.ABORTED.value)
    return bool(connection.scalar(sa.select(are_kept)))


def delete_manifest(connection: Connection, stream_id: int, batch_id: int) -> None:
    for table in (contents, dead_letters, manifests):
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
        "kind": manifest.kind,
        "version": manifest.version,
        "files": manifest.files,
        "rows": manifest.rows,
        "size_bytes": manifest.size_bytes,
        "is_empty": manifest.is_empty,
        "content_sha256": checksum,
        "run_id": run_id,
        "prepared_at": now,
        "reason": "",
        "oldest_event_at": manifest.oldest_event_at,
    }
    connection.execute(_PUT_MANIFEST, row)
    connection.execute(_PUT_CONTENT, {**key, "content": manifest.content})
    put_dead_letters(connection, stream_id, manifest.batch.batch_id, manifest.dead_letters)
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
    )


def put_dead_letters(
    connection: Connection, stream_id: int, batch_id: int, letters: Sequence[DeadLetter]
) -> None:
    """Insert dead letters, except those that are stored already."""
    if not letters:
        return
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
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
    connection.execute(insert(dead_letters).on_conflict_do_nothing(), values)


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


def count_committed(connection: Connection, stream_id: int, batch_id: int, table_version: int | None) -> None:
    """Count a batch that was just marked COMMITTED, and store the table version that contains it, if
    known.
    """
    given = {"given_stream": stream_id, "given_batch": batch_id, "given_version": table_version}
    connection.execute(_COUNT_COMMITTED, given)


def to_record(stream: StreamKey, row: Row[Any]) -> ManifestRecord:
    # A driver of an earlier version that is still running during the store's upgrade sets only the state.
    default = AbortedBy.REPLAY if row.state == ManifestState.ABORTED.value else None
    return ManifestRecord(
        batch=Batch(stream, row.batch_id, row.digest),
        state=ManifestState(row.state),
        kind=row.kind,
        version=row.version,
        files=row.files,
        rows=row.rows,
        size_bytes=row.size_bytes,
        run_id=row.run_id,
        prepared_at=row.prepared_at,
        finished_at=row.finished_at,
        table_version=row.table_version,
        reason=row.reason,
        delivery_id=row.delivery_id,
        aborted_by=default if row.aborted_by is None else AbortedBy(row.aborted_by),
    )


def newest(connection: Connection, stream: StreamKey, limit: int) -> list[ManifestRecord]:
    query = sa.select(manifests).where(of_stream(stream)).order_by(manifests.c.batch_id.desc()).limit(limit)
    return [to_record(stream, row) for row in connection.execute(query)]


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


def backlogs(connection: Connection, ids: sa.Select[tuple[int]] | None = None) -> dict[int, Backlog]:
    """The PREPARED batches of all streams that have some, or of these, by the number of the stream. The cost
    depends on the number of PREPARED batches.
    """
    sums = (sa.func.sum(column) for column in _COUNTED)
    query = sa.select(
        manifests.c.stream_id, sa.func.count(), *sums, sa.func.min(manifests.c.prepared_at)
    ).where(IS_PREPARED)
    if ids is not None:
        query = query.where(manifests.c.stream_id.in_(ids))
    return {
        stream_id: Backlog(batches, int(files), int(rows), int(size_bytes), oldest)
        for stream_id, batches, files, rows, size_bytes, oldest in connection.execute(
            query.group_by(manifests.c.stream_id)
        )
    }


def to_delivery_state(row: Row[Any]) -> DeliveryState:
    return DeliveryState(
        tries=row.tries,
        retry_at=row.retry_at,
        error=row.error,
        isolate_until=row.isolate_until,
        parked_at=row.parked_at,
        parked_by=row.parked_by,
        parked_why=row.parked_why,
    )
