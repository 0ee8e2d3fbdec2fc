"""`penstock skip` and `penstock abort`: give up undelivered batches at an operator's request."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..committers import crash_points
from ..committers.contract import Batch, ManifestRecord, ManifestState
from ..committers.errors import (
    CheckpointGoneError,
    ConfigurationError,
    TableChangedError,
    shown,
)
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..datasource.destinations import open_committer, paths_of, stored_table
from ..datasource.settings import DEAD_LETTERS
from ..datasource.sink import Sink
from ..datasource.spark.checkpoint import Checkpoint
from ..datasource.stored.stored_table import Cleanable
from ..datasource.stored.table_access import TableAccess
from ..delivery.stream_settings import StreamSettings, build_sink
from ..writers.local_path import is_relative
from .leases import held_lease
from .skipping import save_rows


@dataclass(frozen=True, slots=True)
class Aborted:
    """The batches that were given up, and their files."""

    records: Sequence[ManifestRecord]
    files: int
    deleted: int


def last_in_table(store: SqlManifestStore, stream: StreamStatus, access: TableAccess) -> int:
    """Return the id of the stream's last batch in the table; -1 if there is none, or if the table was
    replaced.

    Raises:
        RetryableError: the table cannot be read now.
    """
    try:
        token = open_committer(stream, access, store).token(stream.key.query_id)
    except TableChangedError:
        return -1
    return -1 if token is None else token.batch_id


def undelivered(
    store: SqlManifestStore, stream: StreamStatus, access: TableAccess
) -> tuple[int, list[ManifestRecord]]:
    """Return the id of the last batch in the table, and the prepared batches after it."""
    last = last_in_table(store, stream, access)
    return last, [record for record in store.pending(stream.key) if record.batch.batch_id > last]


def check_skippable(
    store: SqlManifestStore, stream: StreamStatus, batch_id: int, access: TableAccess
) -> ManifestRecord:
    """Return the record of a prepared batch that is not in the table.

    Raises:
        ConfigurationError: the batch is unknown, delivered, or given up, or it is of dead letters.
    """
    if StreamSettings.parse(stream.settings).delivery == DEAD_LETTERS:
        raise ConfigurationError(
            f"{stream.key} has dead letters of another stream, whose rows stay in a dead-letter table: "
            "there is nothing to skip. The next delivery, or penstock dead-letters resend, finishes the "
            "batch."
        )
    record = store.record(stream.key, batch_id)
    last, waiting = undelivered(store, stream, access)
    if record is None:
        raise ConfigurationError(f"The store has no batch {batch_id} of {stream.key}.")
    if record.batch in {other.batch for other in waiting}:
        return record
    if batch_id <= last:
        raise ConfigurationError(
            f"Batch {batch_id} of {stream.key} is in the table, whose last batch is {last}: there is nothing "
            "to skip."
        )
    raise ConfigurationError(f"Batch {batch_id} of {stream.key} is {record.state.value}, not PREPARED.")


def skip_batch(
    store: SqlManifestStore,
    stream: StreamStatus,
    record: ManifestRecord,
    access: TableAccess,
    sink: Sink[Any, Any] | None,
    who: str,
    why: str,
) -> ManifestRecord:
    """Save the rows of a batch, then give it up.

    Holds the lease of the stream, so that no process delivers the batch in the meantime.

    Args:
        sink: the table for the rows; None: they are not saved

    Raises:
        ConfigurationError: the batch has changed, or its rows cannot be saved. It was not given up.
        RetryableError: a delivery process holds the lease, or the batch is in an unfinished delivery.
    """
    batch = record.batch
    changed = ConfigurationError(
        f"Batch {batch.batch_id} of {stream.key} was not given up: it was delivered, given up or written "
        "again in the meantime. Look at it with penstock show."
    )
    with held_lease(store, stream.key):
        now = store.record(stream.key, batch.batch_id)
        if now is None or now.batch != batch or now.state is not ManifestState.PREPARED:
            raise changed
        if sink is not None and now.delivery_id is None:  # else `skip` raises the error
            manifest = store.manifest(stream.key, batch.batch_id)
            assert manifest is not None
            save_rows(store, stream, manifest, access, sink, f"skipped by {who}: {why}")
        crash_points.reach("skip.saved", batch.batch_id)
        if not store.deliveries.skip(stream.key, batch.batch_id, who, why, expected=batch):
            raise changed
    return store.record(stream.key, batch.batch_id) or record


def check_checkpoint_gone(stream: StreamStatus, access: TableAccess) -> str:
    """Return the location of the lost checkpoint; empty if the store does not know it.

    Raises:
        ConfigurationError: the checkpoint still exists, so that its query may continue and would miss the
            batches; or the store has a relative path, so that Penstock cannot tell.
        RetryableError: the location cannot be read now.
    """
    location, is_there = checkpoint_of(stream, access)
    if not is_there:
        return location
    raise ConfigurationError(
        f"The checkpoint {location} of query {stream.key.query_id} still exists. If its batches were given "
        "up, the query would continue after them, and their rows would be missing. To deliver the batches: "
        "penstock deliver --once. To give up one of them: penstock skip. If the query will never start "
        "again, first remove its checkpoint."
    )


def checkpoint_of(stream: StreamStatus, access: TableAccess) -> tuple[str, bool]:
    """Return the location of the checkpoint, empty if the store does not know it, and whether the checkpoint
    of this query is there.

    Raises:
        ConfigurationError: the store has a relative path, so that Penstock cannot tell.
        RetryableError: the location cannot be read now.
    """
    settings = StreamSettings.parse(stream.settings)
    location = settings.checkpoint
    if not location:
        return "", False
    if is_relative(location):
        raise ConfigurationError(
            f"The store has the checkpoint of query {stream.key.query_id} as the relative path "
            f"{shown(location)}, stored by an earlier version of Penstock. The query's working directory is "
            "unknown, so Penstock cannot tell whether the checkpoint still exists. Nothing was given up. The "
            "next start of the query stores the absolute path. If the query will never start again, give up "
            "its batches one by one: penstock skip."
        )
    filesystem, root = build_sink(stream, settings, access).open_filesystem(location)
    try:
        Checkpoint(filesystem, root, location).last_commit(stream.key.query_id)
    except CheckpointGoneError:
        return location, False
    return location, True


def abort(
    store: SqlManifestStore,
    stream: StreamStatus,
    access: TableAccess,
    who: str,
    why: str,
    expected: Collection[Batch],
) -> Aborted:
    """Give up all batches that are not in the table, then delete their files, unless another target of the
    query needs them.

    Holds the lease of the stream, so that no process delivers the batches in the meantime.

    Args:
        expected: the batches that the operator has confirmed; if the undelivered batches differ, nothing is
            given up

    Raises:
        RetryableError: a delivery process holds the lease, other batches than `expected` are undelivered, or
            the table cannot be read now.
    """
    with held_lease(store, stream.key):
        last = last_in_table(store, stream, access)
        records = store.deliveries.abort_pending(stream.key, last, who, why, expected=expected)
        paths: list[str] = []
        for batch in [record.batch for record in records]:
            needed = _names_in_other_targets(store, batch)
            paths += (path for path in _paths(store, batch) if posixpath.basename(path) not in needed)
        return Aborted(records, len(paths), _delete_unnamed(store, stream, access, paths))


def _paths(store: SqlManifestStore, batch: Batch) -> Iterator[str]:
    manifest = store.manifest(batch.stream, batch.batch_id)
    return iter(()) if manifest is None else paths_of(manifest)


def _names_in_other_targets(store: SqlManifestStore, batch: Batch) -> set[str]:
    """Names of files that other targets of the query have too: a row log, or the files of two tables."""
    others = [replace(batch, stream=key) for key in store.streams_of(batch.stream.query_id)]
    records = [store.record(one.stream, one.batch_id) for one in others if one != batch]
    needed = [one.batch for one in records if one is not None and one.state is not ManifestState.ABORTED]
    return {posixpath.basename(path) for one in needed for path in _paths(store, one)}


def _delete_unnamed(
    store: SqlManifestStore, stream: StreamStatus, access: TableAccess, paths: Sequence[str]
) -> int:
    """Delete the files that no version of the table references."""
    stored = stored_table(stream, access)
    if not isinstance(stored, Cleanable):
        return 0
    table = stored.cleanable(store)
    left = {posixpath.basename(path): path for path in paths}
    for names in table.names():
        for name in names:
            left.pop(name, None)
    return table.delete_files(left.values())
