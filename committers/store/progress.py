"""The progress of streams whose destination cannot store a token. See `committers.progress`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ..contract import NO_LETTERS, AbortedBy, DeadLetters, StreamKey, Token
from ..dead_letters import SENDING
from ..deliveries.contract import Lease
from ..errors import FencedError
from ..progress import BatchInDelivery, Progress
from ..row_log.sharing import row_log_in, targets_in
from . import delivery_queries, manifest_queries, queries
from .part import ClockedPart
from .tables import IS_PREPARED, dead_letters, manifests, progress, streams
from .waiting import waits


@waits("read")
class SqlProgress(ClockedPart):
    """`ProgressStore` on SQLite and Postgres. Each method is one short database transaction.

    Methods raise `RetryableError` if the database does not answer. `write` raises `CommitStateUnknownError`
    if the database does not answer the COMMIT.
    """

    def read(self, stream: StreamKey) -> Progress:
        query = sa.select(progress).join(streams).where(queries.is_stream(stream))
        return _to_progress(self._database.row(query))

    def dead_letters(self, stream: StreamKey, batch_id: int) -> int:
        """See `ProgressStore`."""
        query = (
            sa.select(sa.func.count())
            .select_from(dead_letters)
            .join(streams)
            .where(queries.is_stream(stream), dead_letters.c.batch_id == batch_id)
            .where(dead_letters.c.letter_id.startswith(f"{SENDING}-"))
        )
        return self._database.scalar(query) or 0

    def write(
        self,
        stream: StreamKey,
        expected: Progress,
        token: Token | None,
        in_delivery: BatchInDelivery | None = None,
        dead_letters: DeadLetters = NO_LETTERS,
        *,
        lease: Lease | None = None,
    ) -> Progress:
        """See `ProgressStore`."""
        new = Progress(expected.revision + 1, token, in_delivery)
        with self._database.write() as connection:
            stream_id = self._lock(connection, stream)
            if lease is not None:
                delivery_queries.check_lease(connection, stream_id, lease)
            query = sa.select(progress).where(progress.c.stream_id == stream_id)
            found = _to_progress(connection.execute(query).one_or_none())
            if found != expected:
                raise FencedError(
                    f"Another process delivers {stream}: its progress in the store {self._database.name} is "
                    f"{_shown(found)}, and this process expected {_shown(expected)}. This process sends "
                    "nothing more."
                )
            values = {**_to_values(new), "changed_at": self._clock()}
            if expected.revision:
                connection.execute(
                    sa.update(progress).where(progress.c.stream_id == stream_id).values(values)
                )
            else:
                connection.execute(sa.insert(progress).values(stream_id=stream_id, **values))
            for batch_id, letters in dead_letters.items():
                manifest_queries.put_dead_letters(connection, stream_id, batch_id, letters)
        return new

    # Row logs that several targets of a query share, see `SharedLogs` ---------------------------------

    def needed_by_others(self, stream: StreamKey, location: str, batch_ids: Collection[int]) -> set[int]:
        with self._database.read() as connection:
            others = [other.id for other in _sharing(connection, stream, location)]
            if not others or not batch_ids:
                return set()
            query = (
                sa.select(manifests.c.batch_id)
                .outerjoin(progress, progress.c.stream_id == manifests.c.stream_id)
                .where(manifests.c.stream_id.in_(others), IS_PREPARED, _IS_AHEAD)
                .where(manifests.c.batch_id.between(min(batch_ids), max(batch_ids)))
            )
            return set(connection.scalars(query)).intersection(batch_ids)

    def settled_by_others(self, stream: StreamKey, location: str, *, has_ended: bool = False) -> int | None:
        """See `SharedLogs`.

        Args:
            has_ended: the query prepares no more batches for any target
        """
        with self._database.read() as connection:
            own = connection.scalar(sa.select(streams.c.settings).where(queries.is_stream(stream)))
            targets = targets_in(own or "")
            settled = [
                _settled(connection, other.id, is_target=not has_ended and other.table_uri in targets)
                for other in _sharing(connection, stream, location)
            ]
        return min((last for last in settled if last is not None), default=None)


_IS_AHEAD = sa.or_(progress.c.batch_id.is_(None), manifests.c.batch_id > progress.c.batch_id)
"""The batch is not delivered, whatever its record says."""


def _sharing(connection: Connection, stream: StreamKey, location: str) -> list[Row[int, str, str]]:
    """The other streams of the query that read the row log there, maybe of targets that it no longer has."""
    query = sa.select(streams.c.id, streams.c.table_uri, streams.c.settings).where(
        streams.c.query_id == stream.query_id, streams.c.table_uri != stream.table_uri
    )
    return [row for row in connection.execute(query) if row_log_in(row.settings) == location]


def _settled(connection: Connection, stream_id: int, *, is_target: bool) -> int | None:
    """Return the last batch whose files the stream neither needs nor may still prepare; None: all.

    Args:
        is_target: the query still writes for it: also batches that are aborted but may be written again, and
            those that are not prepared yet
    """
    may_return = manifests.c.aborted_by.in_((AbortedBy.REPLAY.value, AbortedBy.ABORT.value))
    is_open = sa.or_(IS_PREPARED, may_return) if is_target else IS_PREPARED
    first = connection.scalar(
        sa.select(sa.func.min(manifests.c.batch_id))
        .outerjoin(progress, progress.c.stream_id == manifests.c.stream_id)
        .where(manifests.c.stream_id == stream_id, is_open, _IS_AHEAD)
    )
    last = None if first is None else first - 1
    if not is_target:
        return last
    newest = connection.scalar(
        sa.select(sa.func.max(manifests.c.batch_id)).where(manifests.c.stream_id == stream_id)
    )
    if newest is None:
        return -1
    return int(newest if last is None else min(newest, last))


def _to_progress(row: Row[Any] | None) -> Progress:
    if row is None:
        return Progress()
    token = None if row.batch_id is None else Token(row.batch_id, row.digest)
    in_delivery = None
    if row.next_batch_id is not None:
        in_delivery = BatchInDelivery(row.next_batch_id, row.next_digest, row.next_rows_id, row.next_position)
    return Progress(row.revision, token, in_delivery)


def _to_values(new: Progress) -> dict[str, Any]:
    token, in_delivery = new.token, new.in_delivery
    return {
        "revision": new.revision,
        "batch_id": None if token is None else token.batch_id,
        "digest": "" if token is None else token.digest,
        "next_batch_id": None if in_delivery is None else in_delivery.batch_id,
        "next_digest": "" if in_delivery is None else in_delivery.digest,
        "next_rows_id": "" if in_delivery is None else in_delivery.rows_id,
        "next_position": 0 if in_delivery is None else in_delivery.position,
    }


def _shown(one: Progress) -> str:
    batch = "no batch" if one.token is None else f"batch {one.token.batch_id}"
    if one.in_delivery is None:
        return batch
    return f"{batch} and {one.in_delivery.position:,} rows of batch {one.in_delivery.batch_id}"
