"""How a manifest gets into the store: which of two manifests of a batch is valid, and who may store one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Connection, Row

from ..contract import Batch, ManifestRecord, ManifestState, StreamKey
from ..errors import FencedError, RetryableError
from . import manifest_queries, queries
from .contract import Prepared, PrepareRequest
from .database import Clock


class Preparation:
    """Stores manifests in one transaction.

    Args:
        store: its name, for messages
    """

    def __init__(self, connection: Connection, store: str, clock: Clock) -> None:
        self._connection = connection
        self._store = store
        self._clock = clock

    def prepare_all(self, requests: Sequence[PrepareRequest], run_id: str) -> Sequence[Prepared]:
        """See `ManifestStore.prepare_all`."""
        prepared: dict[int, Prepared] = {}
        for number in sorted(range(len(requests)), key=lambda one: _stream_of(requests[one])):
            prepared[number] = self.prepare(requests[number], run_id)
        in_order = [prepared[number] for number in range(len(requests))]
        _check_not_torn(requests, in_order)
        return in_order

    def prepare(self, request: PrepareRequest, run_id: str) -> Prepared:
        """See `ManifestStore.prepare`."""
        connection = self._connection
        manifest, batch = request.manifest, request.manifest.batch
        checksum = manifest.content_sha256
        stream_id = queries.lock_known_stream(connection, batch.stream, self._store)
        current = queries.current_run(connection, stream_id)
        if current is None or current.run_id != run_id:
            raise fenced(batch.stream, run_id, current)
        if request.follows is not None:
            self._check_followed(stream_id, request.follows)
        row = manifest_queries.find_manifest(connection, stream_id, batch.batch_id)
        if row is not None:
            record = manifest_queries.to_record(batch.stream, row)
            is_ours = (row.run_id, row.digest, row.content_sha256) == (run_id, batch.digest, checksum)
            if record.is_skipped and record.batch == batch:
                raise RetryableError(_skipped(record))
            if not _gives_way(record, None if is_ours else request.replacing):
                return Prepared(record, is_ours)
            if record.batch != batch and manifest_queries.is_followed(connection, stream_id, batch.batch_id):
                raise RetryableError(_followed(record))
            manifest_queries.delete_manifest(connection, stream_id, batch.batch_id)
        new = manifest_queries.put_manifest(connection, stream_id, manifest, checksum, run_id, self._clock())
        return Prepared(new, is_ours=True)

    def _check_followed(self, stream_id: int, follows: Batch) -> None:
        row = manifest_queries.find_manifest(self._connection, stream_id, follows.batch_id)
        before = None if row is None else manifest_queries.to_record(follows.stream, row)
        if before is not None and before.batch == follows and not before.awaits_replay:
            return
        what = "does not know" if before is None else "has aborted, or has other rows for,"
        raise RetryableError(
            f"The manifest store {self._store} {what} batch {follows.batch_id} of {follows.stream}: it was "
            "changed while the next batch was written. The next batch was not prepared. Start the query "
            "again."
        )


def _stream_of(request: PrepareRequest) -> tuple[str, str]:
    """Sort key: transactions that lock several streams lock them in one order."""
    stream = request.manifest.batch.stream
    return stream.query_id, stream.table_uri


def _check_not_torn(requests: Sequence[PrepareRequest], prepared: Sequence[Prepared]) -> None:
    """Check that no stream gets rows of a batch which another stream has from other source offsets.

    Raises:
        RetryableError: one would. The transaction has to be rolled back.
    """
    others = [
        one.record
        for request, one in zip(requests, prepared, strict=True)
        if one.record.batch != request.manifest.batch
    ]
    if others and any(one.is_ours for one in prepared):
        raise RetryableError(
            f"Batch {others[0].batch.batch_id} of {others[0].batch.stream} is prepared from other source "
            "offsets by another run. Nothing was prepared, for any target. Make sure that only one driver "
            "runs the query, and start it again."
        )


def _gives_way(record: ManifestRecord, replacing: ManifestRecord | None) -> bool:
    """Return True if a new manifest of the batch takes the place of this one.

    Raises:
        RetryableError: it should be replaced, but it has changed or is being delivered.
    """
    if record.state is ManifestState.ABORTED or replacing is None:
        return record.state is ManifestState.ABORTED
    if record == replacing and record.delivery_id is None:
        return True
    raise RetryableError(
        f"Batch {record.batch.batch_id} of {record.batch.stream} cannot be replaced: it is being delivered, "
        "or another run has just changed it. It was written again because its files are missing or no "
        "longer fit the table. Nothing was prepared. Start the query again."
    )


def _skipped(record: ManifestRecord) -> str:
    return (
        f"An operator skipped batch {record.batch.batch_id} of {record.batch.stream} while it was written. "
        "Nothing was prepared. Start the query again: it continues with the next batch."
    )


def _followed(given_up: ManifestRecord) -> str:
    return (
        f"Another run has continued after batch {given_up.batch.batch_id} of {given_up.batch.stream}, which "
        "had other rows, while this run was replacing it. Nothing was prepared. Make sure that only one "
        "driver runs the query, and start it again."
    )


def fenced(stream: StreamKey, run_id: str, current: Row[Any] | None) -> FencedError:
    if current is None:
        return FencedError(f"Run {run_id} has not claimed the stream {stream}. Start the query again.")
    return FencedError(
        f"Run {run_id} no longer holds the stream {stream}: run {current.run_id} took over at "
        f"{current.claimed_at.isoformat(timespec='seconds')}. Let this query end. If it is the one that "
        "should run, stop the other one and start this one again."
    )
