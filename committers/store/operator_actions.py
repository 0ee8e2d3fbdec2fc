"""What operators decide about a stream's deliveries, and their words, which the store keeps for good.

Runs in the command line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..contract import AbortedBy, Batch, ManifestRecord, ManifestState, StreamKey
from ..errors import RetryableError
from . import delivery_queries, queries
from .database import Clock, Database
from .tables import IS_PREPARED, manifests, operator_actions, streams


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """An operator's word."""

    at: datetime
    who: str
    what: str
    """`park`, `retry`, `skip` or `abort`."""
    batch_id: int | None
    """None if it is about the stream."""
    why: str


class SqlOperatorActions:
    """Every method is one short database transaction; errors as in `SqlManifestStore`.

    Raises:
        RetryableError: also if the store does not know the stream.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def park(self, stream: StreamKey, who: str, why: str) -> None:
        """Deliver nothing of the stream until `retry`. A delivery whose commit is on its way still lands."""
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            said = {"parked_by": queries.storable(who), "parked_why": queries.storable(why)}
            queries.update_stream(connection, stream_id, {"parked_at": now, **said})
            delivery_queries.put_operator_actions(connection, stream_id, now, who, "park", why)

    def retry(self, stream: StreamKey, who: str, why: str) -> None:
        """Deliver again at once, with all tries. The error is shown until something is delivered."""
        values = {"tries": 0, "retry_at": None, "parked_at": None, "parked_by": "", "parked_why": ""}
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            queries.update_stream(connection, stream_id, values)
            delivery_queries.put_operator_actions(connection, stream_id, now, who, "retry", why)

    def skip(
        self, stream: StreamKey, batch_id: int, who: str, why: str, *, expected: Batch | None = None
    ) -> bool:
        """Give a PREPARED batch up for good: its rows never get into the table. False if it is not PREPARED.

        The caller has looked at the table: a batch that it holds already is not to be given up.

        Args:
            seen: false also if other rows than these have come under the batch id since

        Raises:
            RetryableError: the batch is in a delivery that may land.
        """
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            row = queries.find_manifest(connection, stream_id, batch_id)
            if row is None or row.state != ManifestState.PREPARED.value:
                return False
            if expected is not None and expected.digest != row.digest:
                return False
            if row.delivery_id is not None:
                raise _being_delivered(stream, batch_id, row.delivery_id)
            values = queries.aborted(now, AbortedBy.SKIP, f"skipped by {who}: {why}")
            queries.update_prepared(connection, stream_id, Batch(stream, batch_id, row.digest), values)
            delivery_queries.put_operator_actions(connection, stream_id, now, who, "skip", why, [batch_id])
        return True

    def abort_pending(
        self,
        stream: StreamKey,
        after_batch: int,
        who: str,
        why: str,
        *,
        expected: Collection[Batch] | None = None,
    ) -> Sequence[ManifestRecord]:
        """Give up all PREPARED batches after this one; which they were, in ascending order.

        Args:
            seen: that they have to be, or nothing is given up

        Raises:
            RetryableError: one of them is in a delivery that may land, or they are others than were seen;
                nothing was given up.
        """
        are_chosen = (IS_PREPARED, manifests.c.batch_id > after_batch)
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            chosen = (manifests.c.stream_id == stream_id, *are_chosen)
            query = sa.select(manifests).where(*chosen).order_by(manifests.c.batch_id)
            records = [queries.to_record(stream, row) for row in connection.execute(query)]
            if expected is not None and {record.batch for record in records} != set(expected):
                raise RetryableError(
                    f"Other batches of {stream} wait to be delivered than a moment ago: it was delivered, or "
                    "a query has prepared more. Nothing was given up. Look again: penstock status"
                )
            for record in records:
                if record.delivery_id is not None:
                    raise _being_delivered(stream, record.batch.batch_id, record.delivery_id)
            if not records:
                return []
            values = queries.aborted(now, AbortedBy.ABORT, f"aborted by {who}: {why}")
            connection.execute(sa.update(manifests).where(*chosen).values(values))
            ids = [record.batch.batch_id for record in records]
            delivery_queries.put_operator_actions(connection, stream_id, now, who, "abort", why, ids)
        aborted = {"state": ManifestState.ABORTED, "aborted_by": AbortedBy.ABORT, "finished_at": now}
        return [replace(one, **aborted, reason=str(values["reason"])) for one in records]  # type: ignore[arg-type]

    def operator_actions(self, stream: StreamKey) -> Sequence[OperatorAction]:
        """All of them, oldest first."""
        query = (
            sa.select(operator_actions)
            .join(streams)
            .where(queries.is_stream(stream))
            .order_by(operator_actions.c.id)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [OperatorAction(row.at, row.who, row.what, row.batch_id, row.why) for row in rows]

    def _lock(self, connection: Connection, stream: StreamKey) -> int:
        return queries.lock_known_stream(connection, stream, self._database.name)


def _being_delivered(stream: StreamKey, batch_id: int, delivery_id: int) -> RetryableError:
    return RetryableError(
        f"Batch {batch_id} of {stream} is part of delivery {delivery_id}, which is not finished and may land "
        "at any time. Nothing was given up. Let a delivery process finish it (`penstock deliver --once`), "
        "then try again; `penstock park` keeps it from starting another."
    )
