"""Operator actions on a stream: park, retry, skip, abort, of which the store keeps a record, and forget.

Runs in the command line.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import sqlalchemy as sa

from ..contract import AbortedBy, Batch, ManifestRecord, ManifestState, StreamKey
from ..errors import RetryableError
from . import delivery_queries, manifest_queries, pruning, queries
from .part import ClockedPart
from .tables import IS_PREPARED, dead_letters, manifests, operator_actions, streams


@dataclass(frozen=True, slots=True)
class OperatorAction:
    """One recorded operator action."""

    at: datetime
    who: str
    what: str
    """`park`, `retry`, `skip`, `acknowledge` or `abort`."""
    batch_id: int | None
    """None if the action concerns the whole stream."""
    why: str


class SqlOperatorActions(ClockedPart):
    """Each method is one short database transaction; errors as in `SqlManifestStore`.

    Raises:
        RetryableError: the store does not know the stream.
    """

    def park(self, stream: StreamKey, who: str, why: str) -> None:
        """Stop deliveries of the stream until `retry`. A commit that is already being sent may still
        succeed.
        """
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            parked = {"parked_by": queries.storable(who), "parked_why": queries.storable(why)}
            queries.update_stream(connection, stream_id, {"parked_at": now, **parked})
            delivery_queries.put_operator_actions(connection, stream_id, now, who, "park", why)

    def retry(self, stream: StreamKey, who: str, why: str) -> None:
        """Resume deliveries at once, with all tries. The last error is shown until something is delivered."""
        values = {"tries": 0, "retry_at": None, "parked_at": None, "parked_by": "", "parked_why": ""}
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            queries.update_stream(connection, stream_id, values)
            delivery_queries.put_operator_actions(connection, stream_id, now, who, "retry", why)

    def skip(
        self, stream: StreamKey, batch_id: int, who: str, why: str, *, expected: Batch | None = None
    ) -> bool:
        """Abort a PREPARED batch for good: its rows are never added to the table. Return False if it is not
        PREPARED.

        The caller must have checked that the table does not contain the batch.

        Args:
            expected: also return False if the batch id has other rows by now

        Raises:
            RetryableError: the batch is in an unfinished delivery.
        """
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            row = manifest_queries.find_manifest(connection, stream_id, batch_id)
            if row is None or row.state != ManifestState.PREPARED.value:
                return False
            if expected is not None and expected.digest != row.digest:
                return False
            if row.delivery_id is not None:
                raise _being_delivered(stream, batch_id, row.delivery_id)
            values = manifest_queries.aborted(now, AbortedBy.SKIP, f"skipped by {who}: {why}")
            manifest_queries.update_prepared(
                connection, stream_id, Batch(stream, batch_id, row.digest), values
            )
            delivery_queries.put_operator_actions(connection, stream_id, now, who, "skip", why, [batch_id])
            letters = sa.delete(dead_letters).filter_by(stream_id=stream_id, batch_id=batch_id)
            connection.execute(letters)  # the caller has saved them with the batch's rows
        return True

    def acknowledge(self, stream: StreamKey, who: str, why: str) -> None:
        """Record that an operator knows of all batches that are skipped now: they need no more attention."""
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            delivery_queries.put_operator_actions(connection, stream_id, now, who, "acknowledge", why)

    def abort_pending(
        self,
        stream: StreamKey,
        after_batch: int,
        who: str,
        why: str,
        *,
        expected: Collection[Batch] | None = None,
    ) -> Sequence[ManifestRecord]:
        """Abort all PREPARED batches after `after_batch`; return them in ascending order. The error of the
        last delivery, which concerned them, is no longer shown.

        Args:
            expected: abort nothing if the PREPARED batches are not exactly these

        Raises:
            RetryableError: one of them is in an unfinished delivery, or they are not the expected ones.
                Nothing was aborted.
        """
        are_chosen = (IS_PREPARED, manifests.c.batch_id > after_batch)
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            chosen = (manifests.c.stream_id == stream_id, *are_chosen)
            query = sa.select(manifests).where(*chosen).order_by(manifests.c.batch_id)
            records = [manifest_queries.to_record(stream, row) for row in connection.execute(query)]
            if expected is not None and {record.batch for record in records} != set(expected):
                raise RetryableError(
                    f"The pending batches of {stream} have changed: some were delivered, or a query has "
                    "prepared more. Nothing was aborted. Check again with: penstock status"
                )
            for record in records:
                if record.delivery_id is not None:
                    raise _being_delivered(stream, record.batch.batch_id, record.delivery_id)
            if not records:
                return []
            values = manifest_queries.aborted(now, AbortedBy.ABORT, f"aborted by {who}: {why}")
            connection.execute(sa.update(manifests).where(*chosen).values(values))
            ids = [record.batch.batch_id for record in records]
            delivery_queries.put_operator_actions(connection, stream_id, now, who, "abort", why, ids)
            queries.update_stream(connection, stream_id, {"tries": 0, "retry_at": None, "error": ""})
        aborted = {"state": ManifestState.ABORTED, "aborted_by": AbortedBy.ABORT, "finished_at": now}
        return [replace(one, **aborted, reason=str(values["reason"])) for one in records]  # type: ignore[arg-type]

    def left_to_finish(self, stream: StreamKey) -> Sequence[str]:
        """Return what has to be done before the stream can be retired, each with its number.

        Merged files that are not deleted yet are left out: `penstock retire` deletes them.
        """
        query = sa.select(streams.c.id).where(queries.is_stream(stream))
        with self._database.read() as connection:
            stream_id = connection.scalar(query)
            return [] if stream_id is None else pruning.unfinished(connection, stream_id, but=pruning.MERGED)

    def forget(self, stream: StreamKey, holder: str) -> None:
        """Delete all records of the stream.

        Args:
            holder: the caller's name, which may hold the lease of the stream

        Raises:
            RetryableError: something of the stream is not finished. Nothing was deleted.
        """
        with self._database.write() as connection:
            stream_id, now = self._lock(connection, stream), self._clock()
            lease = delivery_queries.find_lease(connection, stream_id)
            is_held = delivery_queries.is_held_by_another(lease, holder, now)
            left = ["its lease is held by a delivery process"] if is_held else []
            left += pruning.unfinished(connection, stream_id)
            if left:
                raise RetryableError(
                    f"The store still needs {stream}: {', '.join(left)}. Nothing was deleted."
                )
            pruning.delete_stream(connection, stream_id)

    def operator_actions(self, stream: StreamKey) -> Sequence[OperatorAction]:
        """All operator actions of the stream, oldest first."""
        query = (
            sa.select(operator_actions)
            .join(streams)
            .where(queries.is_stream(stream))
            .order_by(operator_actions.c.id)
        )
        rows = self._database.rows(query)
        return [OperatorAction(**queries.fields_in(row, OperatorAction)) for row in rows]


def _being_delivered(stream: StreamKey, batch_id: int, delivery_id: int) -> RetryableError:
    return RetryableError(
        f"Batch {batch_id} of {stream} is part of the unfinished delivery {delivery_id}, which may be "
        "committed at any time. Nothing was aborted. Let a delivery process finish it (`penstock deliver "
        "--once`), then try again. `penstock park` prevents the next delivery."
    )
