"""The checks that the next start of a query makes of its checkpoint, its store and its table, made before.

They are those of `plan`, without recovery, and change nothing. Driver and commands.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ...committers.contract import Batch, StreamKey
from ...committers.errors import CheckpointMismatchError
from ...committers.protocol.checkpoint_forks import DigestOf
from ...committers.protocol.decoupled import DecoupledCommitter
from ...committers.protocol.two_phase import TwoPhaseCommitter
from ..query import Query, batch_of_target, prefix_of
from ..sink import Sink, check_same_table, open_table
from .new_query import earlier_rows
from .new_target import check_new_target, starts_with
from .source_files import check_apart_from_source

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore
    from ..spark.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class NextBatch:
    """The batch with which the query will start."""

    batch: Batch
    is_new: bool
    """True: Spark has not logged its offsets, so its digest is not known."""
    digest_of: DigestOf
    """Returns the digest of an earlier batch in the checkpoint."""
    source_files: tuple[str, ...] = ()


def next_batch(query: Query, checkpoint: Checkpoint) -> NextBatch:
    """Read the checkpoint.

    Raises:
        ConfigurationError: a log of the checkpoint is incomplete, or its format is unknown.
        OSError: it cannot be read now.
    """
    query_id = checkpoint.known_query_id()
    if query_id is None:  # Spark gives a new query a random id
        batch = Batch(StreamKey(str(uuid.uuid4()), query.address), 0, "")
        return NextBatch(batch, True, lambda _: None)
    if not checkpoint.has_batches():
        return NextBatch(Batch(StreamKey(query_id, query.address), 0, ""), True, lambda _: None)
    running = checkpoint.running_batch()
    stream = StreamKey(query_id, query.address)
    if checkpoint.last_commit() < running.batch_id:  # it is replayed
        batch = Batch(stream, running.batch_id, running.digest)
        return NextBatch(batch, False, checkpoint.digest_of_logged, running.source_files)
    batch = Batch(stream, running.batch_id + 1, "")
    return NextBatch(batch, True, checkpoint.digest_of_logged, running.source_files)


def check_start(
    name: str,
    sink: Sink[Any, Any],
    store: SqlManifestStore,
    following: NextBatch,
    *,
    overwrite: bool,
    targets: Mapping[str, Sink[Any, Any]],
) -> str:
    """Make the checks for one target.

    Args:
        name: of the target; empty if the query has one
        targets: all of the query

    Returns:
        a warning; empty if there is none

    Raises:
        TableChangedError, CheckpointMismatchError, ConfigurationError: the query would end with it.
        RetryableError: the table or the store cannot be read now.
    """
    check_apart_from_source(targets.values(), following.source_files)
    batch, table = batch_of_target(following.batch, sink), open_table(sink, store)
    check_same_table(table, batch.stream, store.written_table(batch.stream))
    found = earlier_rows(sink, store, table, batch, overwrite)
    if following.is_new:
        record = store.record(batch.stream, batch.batch_id)
        if record is not None:
            raise CheckpointMismatchError(
                f"The manifest store has batch {batch.batch_id} of query {batch.stream.query_id}, with which "
                "the checkpoint would go on: the checkpoint is older than the store. Put back the newest one."
            )
        token = table.token(batch.stream.query_id)
        if token is not None and token.batch_id >= batch.batch_id:
            raise CheckpointMismatchError(
                f"{sink.table_uri} has batch {token.batch_id} of query {batch.stream.query_id}, and the "
                f"checkpoint would go on with batch {batch.batch_id}: the checkpoint is older than the "
                "table. Put back the newest one."
            )
    if sink.options.is_decoupled:
        starts = partial(starts_with, store, sink, prefix_of(name))
        DecoupledCommitter(store, table, starts).check(batch, following.digest_of)
        return found
    TwoPhaseCommitter(store, table).check(batch, following.digest_of)
    if not overwrite:
        check_new_target(sink, store, table, batch)
    return found
