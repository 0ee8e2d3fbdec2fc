"""Give a checkpoint a new query id, so that its next start is a new stream at the same source offsets.

Spark keeps the id of a query in `<checkpoint>/metadata` and reads it when the query starts; beside it is
Hadoop's checksum file, which would no longer fit.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from pyarrow.fs import LocalFileSystem

from ..committers.contract import ManifestState
from ..committers.errors import ConfigurationError
from ..committers.store.sql import SqlManifestStore, StreamStatus
from ..datasource.checkpoint import Checkpoint

METADATA = "metadata"
CHECKSUM = ".metadata.crc"


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """What the checkpoint says before the query id is replaced."""

    query_id: str
    last_batch: int | None
    """The newest batch of the offset log; None if the query never ran a batch."""
    last_digest: str
    is_last_logged: bool
    """Does Spark's commit log have the newest batch?"""


def read_checkpoint(directory: str) -> CheckpointState:
    """
    Raises:
        ConfigurationError: this is no checkpoint of a streaming query.
    """
    checkpoint = Checkpoint(LocalFileSystem(), directory, directory)
    query_id = checkpoint.query_id()
    if not any(name.name.isdecimal() for name in Path(directory, "offsets").glob("*")):
        return CheckpointState(query_id, None, "", is_last_logged=True)
    running = checkpoint.running_batch()
    is_logged = Path(directory, "commits", str(running.batch_id)).exists()
    return CheckpointState(query_id, running.batch_id, running.digest, is_logged)


def check_resettable(state: CheckpointState, store: SqlManifestStore) -> list[StreamStatus]:
    """The streams of the checkpoint's query, none of whose batches would be lost or doubled.

    Raises:
        ConfigurationError: says what to do first.
    """
    streams = [stream for stream in store.streams() if stream.key.query_id == state.query_id]
    if not streams:
        raise ConfigurationError(
            f"The store {store.name} does not know query {state.query_id}: either it is not the store of "
            "this query (give --store), or it has written nothing under this id yet and needs no other."
        )
    for stream in streams:
        _check_nothing_pending(stream)
        _check_no_replay(state, store, stream)
    return streams


def _check_nothing_pending(stream: StreamStatus) -> None:
    if stream.pending:
        raise ConfigurationError(
            f"{stream.pending} batches of query {stream.key.query_id} are pending: under a new id nobody "
            f"would finish them. First run: penstock recover {stream.key.query_id}"
        )


def _check_no_replay(state: CheckpointState, store: SqlManifestStore, stream: StreamStatus) -> None:
    """Spark re-runs the newest batch if it is not in its commit log: under a new id it would land twice."""
    if state.last_batch is None or state.is_last_logged:
        return
    record = store.record(stream.key, state.last_batch)
    if record is None or record.state is not ManifestState.COMMITTED:
        return
    if record.batch.digest == state.last_digest:
        raise ConfigurationError(
            f"Batch {state.last_batch} of query {state.query_id} is in {stream.key.table_uri}, but Spark "
            "does not know yet and would run it again, under the new id as new rows. First start and stop "
            "the query once, which notes the batch and writes nothing."
        )


def write_query_id(directory: str, query_id: str) -> None:
    """Put the new id in place of the old one, in one step that a crash leaves done or not done."""
    metadata = Path(directory, METADATA)
    new = Path(directory, f".{METADATA}.{query_id}.tmp")
    with new.open("w") as file:
        file.write(json.dumps({"id": query_id}, separators=(",", ":")))
        file.flush()
        os.fsync(file.fileno())
    # The checksum goes first: metadata without one is read, with a wrong one it may be refused.
    Path(directory, CHECKSUM).unlink(missing_ok=True)
    new.replace(metadata)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
