"""Plan one batch: everything that is checked and decided before any data moves. Driver only."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache, partial
from typing import TYPE_CHECKING

from ..committers.batch_writes import batch_write_id
from ..committers.checkpoint_forks import DigestOf
from ..committers.commit_runner import Retry
from ..committers.contract import Batch, ContentT, PayloadT, PlannedBatch, StreamKey
from ..committers.dead_letters import BadRows
from ..committers.decision import Action
from ..committers.errors import ConfigurationError, TableChangedError
from ..committers.store.sql import sqlite_url
from ..committers.two_phase import TwoPhaseCommitter
from ..writers.bad_rows import with_bad_rows
from ..writers.local_path import local_path
from .batch_plan import BatchPlan
from .checkpoint import STORE_FILE, Checkpoint
from .dead_letters import check_letter_sink
from .decoupled_planning import plan_decoupled
from .event_time import event_time_column
from .new_query import check_new_query
from .new_target import check_new_target, starts_with
from .options.stream import StreamOptions
from .plan_cache import PLANS, PlanCache, PlanKey
from .settings import register_stream
from .sink import (
    Destination,
    FansOut,
    Sink,
    check_same_table,
    mode_of,
    open_table,
    without_origins,
)
from .source_files import check_apart_from_source
from .stores import borrow_store
from .types import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ..committers.store.sql import SqlManifestStore


def plan_stream_batch(
    sink: Sink[PayloadT, ContentT], schema: StructType, overwrite: bool
) -> BatchPlan[PayloadT, ContentT]:
    """Recover pending batches, decide whether to write the running batch, and plan how.

    Raises:
        PenstockError: see its subclasses; no data has moved.
    """
    rows = arrow_schema(schema)
    checkpoint = open_checkpoint(sink)
    running = checkpoint.running_batch()
    check_apart_from_source(sink, running.source_files)
    batch = Batch(StreamKey(running.query_id, sink.table_uri), running.batch_id, running.digest)
    with borrow_store(store_url(sink.options), sink.options.store_wait_s) as store:
        return plan_batch(sink, store, batch, rows, overwrite, checkpoint.digest_of_logged)


def plan_batch(
    sink: Sink[PayloadT, ContentT],
    store: SqlManifestStore,
    batch: Batch,
    rows: pa.Schema,
    overwrite: bool,
    digest_of: DigestOf = lambda _: None,
    plans: PlanCache = PLANS,
) -> BatchPlan[PayloadT, ContentT]:
    """Plan a batch with the checkpoint already read and the store open. Raises as `plan_stream_batch`.

    Args:
        digest_of: returns the digest of an earlier batch in the checkpoint; None if it is no longer there
        plans: cache for decoupled streams
    """
    if isinstance(sink, FansOut):
        from .fanout.planning import plan_fanout

        return plan_fanout(sink, store, batch, rows, overwrite, digest_of, plans)
    digest_of, is_decoupled = cache(digest_of), sink.options.is_decoupled
    check_letter_sink(sink)
    event_time = event_time_column(rows, sink.options.event_time)
    key = PlanKey(batch.stream, sink, rows, overwrite)
    if is_decoupled:
        starts = partial(starts_with, store, sink, "")
        planned = plan_decoupled(key, store, batch, digest_of, plans, starts)
    else:
        planned = _plan_coupled(key, store, batch, digest_of)
    if planned is None:
        return BatchPlan(batch)
    register_stream(sink, store, batch.stream, planned.target_id)
    before = digest_of(batch.batch_id - 1) if is_decoupled and batch.batch_id > 0 else None
    writers = with_bad_rows(planned.writers, sink.options.bad_rows)
    return BatchPlan(batch, writers, planned.content, event_time=event_time, digest_before=before)


def _plan_coupled(
    key: PlanKey[PayloadT, ContentT], store: SqlManifestStore, batch: Batch, digest_of: DigestOf
) -> PlannedBatch[PayloadT, ContentT] | None:
    """Plan a batch of a coupled stream; None if the batch must not be written."""
    sink = key.sink
    table, written = open_table(sink, store), store.written_table(batch.stream)
    try:
        check_same_table(table, batch.stream, written)
        check_new_query(sink, store, table, batch, key.overwrite)
        decision = TwoPhaseCommitter(store, table, retry(sink.options)).begin(batch, digest_of)
        check_same_table(table, batch.stream, written)  # again, because recovery has reloaded the table
    except TableChangedError:
        # A new store must know the stream, so that an operator can accept the table.
        register_stream(sink, store, batch.stream)
        raise
    if decision is Action.SKIP:
        return None
    if not key.overwrite:
        check_new_target(sink, store, table, batch)
    return table.plan_batch(key.rows, mode_of(key.overwrite), batch.batch_id)


def plan_batch_write(
    sink: Sink[PayloadT, ContentT],
    schema: StructType,
    overwrite: bool,
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> BatchPlan[PayloadT, ContentT]:
    """Plan a batch write: a stream of one batch, with an id that no other write has."""
    if sink.options.is_decoupled:
        raise ConfigurationError(
            "delivery=decoupled is only for streams. A batch write is committed when it returns. Remove the "
            "option."
        )
    if sink.options.bad_rows is BadRows.DEAD_LETTER:
        raise ConfigurationError(
            "badRows=deadLetter is only for streams: a batch write has no store that could keep the rows. "
            "Remove the option, or set badRows=drop."
        )
    rows = arrow_schema(schema)
    event_time = event_time_column(rows, sink.options.event_time)
    began_at, write = now(), uuid.uuid4()
    planned = sink.open_table().plan_batch(rows, mode_of(overwrite), batch_id=0)
    write_id = batch_write_id(began_at, planned.target_id, str(write))
    batch = Batch(StreamKey(write_id, sink.table_uri), 0, write.hex)
    content = without_origins(planned.content)
    writers = with_bad_rows(planned.writers, sink.options.bad_rows)
    return BatchPlan(batch, writers, content, run_id=write_id, event_time=event_time)


def retry(options: StreamOptions) -> Retry:
    return Retry(attempts_max=options.commit_attempts_max)


def open_checkpoint(sink: Destination) -> Checkpoint:
    """Open the checkpoint of the query."""
    location = sink.options.checkpoint_location
    if location is None:
        raise ConfigurationError(
            'checkpointLocation is missing. Set it on the stream writer: .option("checkpointLocation", ...). '
            "Penstock needs the checkpoint to tell a replayed batch from a new one, and Spark does not pass "
            "spark.sql.streaming.checkpointLocation or a temporary checkpoint to Python sinks."
        )
    filesystem, root = sink.open_filesystem(location)
    return Checkpoint(filesystem, root, location)


def store_url(options: StreamOptions) -> str:
    """Return the URL of the manifest store, by default in the checkpoint directory."""
    if options.store is not None:
        return options.store
    directory = local_path(options.checkpoint_location or "")
    if directory is None:
        raise ConfigurationError(
            f"checkpointLocation {options.checkpoint_location!r} is not on a local disk, so the manifest "
            "store cannot be a SQLite file in it. Give a database that every driver of this query can reach: "
            '.option("store", "postgresql+psycopg://user@host/database").'
        )
    return sqlite_url(posixpath.join(directory, STORE_FILE))
