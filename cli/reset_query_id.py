"""Give a checkpoint a new query id, so that its next start is a new stream at the same source offsets.

Spark stores the id of a query in `<checkpoint>/metadata` and reads it when the query starts. Hadoop's
checksum of that file has to be removed, because it would no longer match.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from pyarrow.fs import LocalFileSystem

from ..committers.cleaning.regular_files import sync
from ..committers.contract import ManifestState
from ..committers.errors import ConfigurationError
from ..committers.store.sql import SqlManifestStore
from ..committers.store.status import StreamStatus
from ..datasource.spark.checkpoint import Checkpoint

METADATA = "metadata"
CHECKSUM = ".metadata.crc"


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The checkpoint before it gets the new query id."""

    query_id: str
    last_batch: int | None
    """The newest batch of the offset log; None if the query has not run a batch yet."""
    last_digest: str
    is_last_logged: bool
    """True if Spark's commit log contains the newest batch."""


def read_checkpoint(directory: str) -> CheckpointState:
    """Read the query id and the newest batch.

    Raises:
        ConfigurationError: the directory is not the checkpoint of a streaming query.
    """
    checkpoint = Checkpoint(LocalFileSystem(), directory, directory)
    query_id = checkpoint.query_id()
    if not any(name.name.isdecimal() for name in Path(directory, "offsets").glob("*")):
        return CheckpointState(query_id, None, "", is_last_logged=True)
    running = checkpoint.running_batch()
    is_logged = Path(directory, "commits", str(running.batch_id)).exists()
    return CheckpointState(query_id, running.batch_id, running.digest, is_logged)


def check_resettable(state: CheckpointState, store: SqlManifestStore) -> list[StreamStatus]:
    """Return the streams of the checkpoint's query, after checking that no batch would be lost or doubled.

    Raises:
        ConfigurationError: a batch would be; the message says what to do first.
    """
    streams = [stream for stream in store.streams() if stream.key.query_id == state.query_id]
    if not streams:
        raise ConfigurationError(
            f"The store {store.name} has no stream of query {state.query_id}. Either this is not the store "
            "of the query (give it with --store), or the query has not written anything under this id and "
            "needs no other."
        )
    for stream in streams:
        _check_nothing_pending(stream)
        _check_no_replay(state, store, stream)
    return streams


def _check_nothing_pending(stream: StreamStatus) -> None:
    if stream.pending:
        raise ConfigurationError(
            f"{stream.pending} batches of query {stream.key.query_id} are pending. Under a new id they would "
            f"never be committed. First run: penstock recover {stream.key.query_id}"
        )


def _check_no_replay(state: CheckpointState, store: SqlManifestStore, stream: StreamStatus) -> None:
    """Refuse if Spark will re-run a committed batch: under a new id, its rows would be added again."""
    if state.last_batch is None or state.is_last_logged:
        return
    record = store.record(stream.key, state.last_batch)
    if record is None or record.state is not ManifestState.COMMITTED:
        return
    if record.batch.digest == state.last_digest:
        raise ConfigurationError(
            f"Batch {state.last_batch} of query {state.query_id} is in {stream.key.table_uri}, but not in "
            "Spark's commit log. Spark would run it again under the new id, and add its rows a second time. "
            "First start and stop the query once: that logs the batch and writes nothing."
        )


def write_query_id(directory: str, query_id: str) -> None:
    """Replace the query id atomically."""
    metadata = Path(directory, METADATA)
    new = Path(directory, f".{METADATA}.{query_id}.tmp")
    with new.open("w") as file:
        file.write(json.dumps({"id": query_id}, separators=(",", ":")))
        file.flush()
        os.fsync(file.fileno())
    # First the checksum: Spark reads metadata without a checksum, but may refuse it with a wrong one.
    Path(directory, CHECKSUM).unlink(missing_ok=True)
    new.replace(metadata)
    sync(directory)
