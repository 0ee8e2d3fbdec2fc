"""What `penstock skip` and `abort` do: give batches up that were never delivered, on an operator's word."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..committers.contract import (
    Batch,
    ManifestRecord,
    StreamKey,
)
from ..committers.deliveries.contract import Lease
from ..committers.errors import (
    CheckpointGoneError,
    ConfigurationError,
    RetryableError,
    TableChangedError,
    shown,
)
from ..committers.store.sql import SqlManifestStore, StreamStatus
from ..datasource.checkpoint import Checkpoint
from ..datasource.destinations import Cleanable, paths_of, stored_table
from ..datasource.table_access import TableAccess
from ..delivery.context import new_holder
from ..delivery.lease import HeldLease
from ..delivery.stream_settings import StreamSettings, build_sink
from ..writers.local_path import is_relative

LEASE_S = 60.0
LEASE_WAIT_S = 15.0
"""A delivery process holds a stream's lease only while it works."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """What became of the batches that were given up."""

    records: Sequence[ManifestRecord]
    files: int
    deleted: int


def last_in_table(stream: StreamStatus, access: TableAccess) -> int:
    """The last batch of the stream that its table holds; -1 if none, or if it is another table by now.

    Raises:
        RetryableError: it cannot be read now.
    """
    try:
        token = stored_table(stream, access).committer().token(stream.key.query_id)
    except TableChangedError:
        return -1
    return -1 if token is None else token.batch_id


def undelivered(
    store: SqlManifestStore, stream: StreamStatus, access: TableAccess
) -> tuple[int, list[ManifestRecord]]:
    """(the last batch in the table, the batches after it that are prepared)"""
    last = last_in_table(stream, access)
    return last, [record for record in store.pending(stream.key) if record.batch.batch_id > last]


def check_skippable(
    store: SqlManifestStore, stream: StreamStatus, batch_id: int, access: TableAccess
) -> ManifestRecord:
    """
    Raises:
        ConfigurationError: the batch is not waiting to be delivered.
    """
    record = store.record(stream.key, batch_id)
    last, waiting = undelivered(store, stream, access)
    if record is None:
        raise ConfigurationError(f"The store has no batch {batch_id} of {stream.key}.")
    if record.batch in {other.batch for other in waiting}:
        return record
    if batch_id <= last:
        raise ConfigurationError(
            f"Batch {batch_id} of {stream.key} is in the table, which holds batch {last}: there is nothing "
            "to skip."
        )
    raise ConfigurationError(f"Batch {batch_id} of {stream.key} is {record.state.value}, not PREPARED.")


def check_checkpoint_gone(stream: StreamStatus, access: TableAccess) -> str:
    """Where the checkpoint was; empty if the store does not know.

    Raises:
        ConfigurationError: it is still there: its query may go on, and would miss the batches. Or the store
            has a relative path, which does not tell.
        RetryableError: it cannot be looked at now.
    """
    settings = StreamSettings.parse(stream.settings)
    location = settings.checkpoint
    if not location:
        return ""
    if is_relative(location):
        raise ConfigurationError(
            f"The store has the checkpoint of query {stream.key.query_id} as the relative path "
            f"{shown(location)}, which an earlier version of Penstock has stored. The query's working "
            "directory is not known, so nobody can tell whether the checkpoint is still there. Nothing was "
            "given up. The next start of the query stores the absolute path. If the query shall never start "
            "again, give its batches up one by one: penstock skip."
        )
    filesystem, root = build_sink(stream, settings, access).open_filesystem(location)
    try:
        Checkpoint(filesystem, root, location).last_commit(stream.key.query_id)
    except CheckpointGoneError:
        return location
    raise ConfigurationError(
        f"The checkpoint {location} of query {stream.key.query_id} is still there. Its query would go on "
        "behind the batches that are given up, and their rows would be missing. To deliver them: "
        "penstock deliver --once. To give one up: penstock skip. If the query shall never start again, "
        "remove its checkpoint first."
    )


def abort(
    store: SqlManifestStore,
    stream: StreamStatus,
    access: TableAccess,
    who: str,
    why: str,
    expected: Collection[Batch],
) -> Aborted:
    """Give up what is not in the table, then delete the files of these batches.

    Under the stream's lease: nobody delivers them meanwhile.

    Args:
        seen: what the operator knows to be given up; nothing is, if it is not the same any more

    Raises:
        RetryableError: a delivery process works on the stream, other batches wait than were seen, or the
            table cannot be read now.
    """
    with HeldLease(store.deliveries, _leased(store, stream.key), LEASE_S):
        last = last_in_table(stream, access)
        records = store.deliveries.abort_pending(stream.key, last, who, why, expected=expected)
        paths = [
            path
            for record in records
            if (manifest := store.manifest(stream.key, record.batch.batch_id)) is not None
            for path in paths_of(manifest)
        ]
        return Aborted(records, len(paths), _delete_unnamed(store, stream, access, paths))


def _leased(store: SqlManifestStore, stream: StreamKey) -> Lease:
    holder, ends_at = new_holder(), time.monotonic() + LEASE_WAIT_S
    while True:
        lease = store.deliveries.acquire(stream, holder, LEASE_S)
        if lease is not None:
            return lease
        if time.monotonic() > ends_at:
            raise RetryableError(
                f"A delivery process has been working on {stream} for {LEASE_WAIT_S:.0f} seconds. Nothing "
                "was given up. `penstock park` keeps it from starting more; then try again."
            )
        time.sleep(0.5)


def _delete_unnamed(
    store: SqlManifestStore, stream: StreamStatus, access: TableAccess, paths: Sequence[str]
) -> int:
    """Delete the files that no version of the table names."""
    stored = stored_table(stream, access)
    if not isinstance(stored, Cleanable):
        return 0
    table = stored.cleanable(store)
    left = {posixpath.basename(path): path for path in paths}
    for names in table.names():
        for name in names:
            left.pop(name, None)
    return table.delete_files(left.values())
