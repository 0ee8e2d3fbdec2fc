"""Plan one batch: everything that is checked and decided before any data moves. Driver only."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ...committers.contract import Batch, ContentT, PayloadT, PlannedBatch, StreamKey, TaskWriterFactory
from ...committers.dead_letters import BadRows
from ...committers.errors import ConfigurationError, TableChangedError, of_target
from ...committers.protocol.batch_writes import batch_write_id
from ...committers.protocol.checkpoint_forks import DigestOf
from ...committers.protocol.commit_runner import Retry
from ...committers.protocol.decision import Action
from ...committers.protocol.decoupled import DecoupledCommitter
from ...committers.protocol.two_phase import TwoPhaseCommitter
from ...committers.store.sql import sqlite_url
from ...committers.target import RollsBackAttempts
from ...writers.bad_rows import with_bad_rows
from ...writers.local_path import local_path
from ...writers.parts import PartsWriters
from ..dead_letters import check_letter_sink
from ..observing import observed_of, planned
from ..options.stream import StreamOptions
from ..query import Query, batch_of_target, prefix_of
from ..settings import register_stream
from ..sink import Destination, Sink, check_same_table, mode_of, open_table, without_origins
from ..spark.checkpoint import STORE_FILE, Checkpoint
from ..spark.types import arrow_schema
from ..stores import borrow_store
from .batch_plan import BatchPlan, PlannedTarget
from .decoupled_planning import plan_decoupled
from .event_time import event_time_column
from .new_query import check_new_query
from .new_target import can_start_with, check_new_target, report_left_targets, starts_with
from .plan_cache import PLANS, PlanCache, PlanKey
from .source_files import check_apart_from_source

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ...committers.store.sql import SqlManifestStore


def plan_stream_batch(query: Query, schema: StructType, overwrite: bool) -> BatchPlan:
    """Recover pending batches, decide which targets need the running batch, and plan how to write it.

    Raises:
        PenstockError: see its subclasses; no data has moved.
    """
    takes_variants = [sink.options.takes_variants for sink in query.targets.values()]
    rows = arrow_schema(schema, variants=query.routes is None and all(takes_variants))
    checkpoint = open_checkpoint(query)
    running = checkpoint.running_batch()
    if query.called_in is not None:
        query.called_in.check(running, query.options.checkpoint_location or "")
    check_apart_from_source(query.targets.values(), running.source_files)
    batch = Batch(StreamKey(running.query_id, query.address), running.batch_id, running.digest)
    run_id = "" if query.called_in is None else query.called_in.run_id
    sources = running.sources if query.options.lineage else ()
    observed = observed_of(query.options, batch, rows, running.source_files)

    def planned_batch() -> BatchPlan:
        with borrow_store(store_url(query.options), query.options.store_wait_s) as store:
            return plan_batch(query, store, batch, rows, overwrite, checkpoint.digest_of_logged)

    plan = planned(observed, batch, query.targets, sources, planned_batch)
    planned_at = datetime.now(timezone.utc)
    return replace(plan, run_id=run_id, sources=sources, observed=observed, planned_at=planned_at)


def plan_batch(
    query: Query,
    store: SqlManifestStore,
    batch: Batch,
    rows: pa.Schema,
    overwrite: bool,
    digest_of: DigestOf = lambda _: None,
    plans: PlanCache = PLANS,
) -> BatchPlan:
    """Plan a batch with the checkpoint already read and the store open. Raises as `plan_stream_batch`.

    Each target decides for itself, with its own record and token, whether the tasks write the batch for it.

    Args:
        digest_of: returns the digest of an earlier batch in the checkpoint; None if it is no longer there
        plans: cache for decoupled streams
    """
    digest_of, targets = cache(digest_of), query.targets
    for name, sink in targets.items():
        with of_target(name):
            check_letter_sink(sink, query.siblings)
    event_time = event_time_column(rows, query.options.event_time)
    batches = {name: batch_of_target(batch, sink) for name, sink in targets.items()}
    _check_replays(query, store, batches, digest_of)
    in_function = query.called_in is not None
    if query.routes is None and not in_function:
        report_left_targets(store, batch, [sink.table_uri for sink in targets.values()])
    planned: dict[str, PlannedBatch[Any, Any]] = {}
    for name, sink in targets.items():
        has_routes = query.routes is not None
        key = PlanKey(batches[name].stream, sink, rows, overwrite, query.siblings, has_routes, in_function)
        with of_target(name):
            one = _plan_target(key, prefix_of(name), store, batches[name], digest_of, plans)
        if one is not None:
            planned[name] = one
    if not planned:
        return BatchPlan(batch)

    def writers_of(name: str) -> TaskWriterFactory[Any]:
        sink = targets[name]
        mode = mode_of(sink.options, overwrite)
        return sink.open_table().plan_batch(rows, mode, batch.batch_id).writers

    parts, part_of = query.parts.of(planned, targets, writers_of)
    for name, one in planned.items():
        register_stream(targets[name], store, batches[name].stream, one.target_id, query.siblings)
    written = tuple(
        PlannedTarget(name, part_of[name], one.content, _digest_before(targets[name], batch, digest_of))
        for name, one in planned.items()
    )
    return BatchPlan(batch, PartsWriters(parts), written, event_time=event_time)


def _check_replays(
    query: Query, store: SqlManifestStore, batches: Mapping[str, Batch], digest_of: DigestOf
) -> None:
    """Let each target refuse a replay before any target aborts its batches for it. The first one does so in
    its own plan.

    Raises:
        CheckpointMismatchError: a target has the batch from other source offsets.
    """
    others = list(query.targets.items())[1:]
    if not others or all(store.record(one.stream, one.batch_id) is None for one in batches.values()):
        return
    for name, sink in others:
        with of_target(name):
            committer = DecoupledCommitter(store, open_table(sink, store), partial(can_start_with, store))
            committer.check(batches[name], digest_of)


def _plan_target(
    key: PlanKey[PayloadT, ContentT],
    prefix: str,
    store: SqlManifestStore,
    batch: Batch,
    digest_of: DigestOf,
    plans: PlanCache,
) -> PlannedBatch[PayloadT, ContentT] | None:
    """Plan the batch for one target; None if it must not be written."""
    if not key.sink.options.is_decoupled:
        return _plan_coupled(key, store, batch, digest_of)
    starts = partial(starts_with, store, key.sink, prefix, in_function=key.in_function)
    return plan_decoupled(key, store, batch, digest_of, plans, starts)


def _digest_before(sink: Destination, batch: Batch, digest_of: DigestOf) -> str | None:
    """Return the digest of the batch before, which the preparation of a decoupled stream compares."""
    return digest_of(batch.batch_id - 1) if sink.options.is_decoupled and batch.batch_id > 0 else None


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
        register_stream(sink, store, batch.stream, siblings=key.siblings)
        raise
    if decision is Action.SKIP:
        return None
    if not key.overwrite:
        check_new_target(sink, store, table, batch, in_function=key.in_function)
    if isinstance(table, RollsBackAttempts):
        table.roll_back_attempts(batch.stream.query_id)
    return table.plan_batch(key.rows, mode_of(key.sink.options, key.overwrite), batch.batch_id)


def plan_batch_write(
    sink: Sink[PayloadT, ContentT],
    schema: StructType,
    overwrite: bool,
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> BatchPlan:
    """Plan a batch write: a stream of one batch, with an id that no other write has."""
    if sink.options.route_by:
        raise ConfigurationError(
            "routeBy is only for streams. Write a batch as a stream with trigger(availableNow=True), or "
            "each table with a write of its own."
        )
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
    if only := sink.options.only_for_streams:
        raise ConfigurationError(f"{only}. Remove the option, or write the rows as a stream.")
    rows = arrow_schema(schema, variants=sink.options.takes_variants)
    event_time = event_time_column(rows, sink.options.event_time)
    began_at, write = now(), uuid.uuid4()
    target = sink.open_table().plan_batch(rows, mode_of(sink.options, overwrite), batch_id=0)
    write_id = batch_write_id(began_at, target.target_id, str(write))
    batch = Batch(StreamKey(write_id, sink.table_uri), 0, write.hex)
    writers = with_bad_rows(target.writers, sink.options.bad_rows)
    content = without_origins(target.content)
    plan = BatchPlan.of_one_target(batch, writers, content, run_id=write_id, event_time=event_time)
    observed = observed_of(sink.options, batch, rows)
    return replace(planned(observed, batch, {"": sink}, (), lambda: plan), observed=observed)


def retry(options: StreamOptions) -> Retry:
    return Retry(attempts_max=options.commit_attempts_max)


def running_batch(query: Query) -> Batch:
    """Return the running batch, as the checkpoint of the query has it."""
    running = open_checkpoint(query).running_batch()
    return Batch(StreamKey(running.query_id, query.address), running.batch_id, running.digest)


def open_checkpoint(query: Query) -> Checkpoint:
    """Open the checkpoint of the query."""
    location = query.options.checkpoint_location
    if location is None:
        raise ConfigurationError(
            'checkpointLocation is missing. Set it on the stream writer: .option("checkpointLocation", ...). '
            "Penstock needs the checkpoint to tell a replayed batch from a new one, and Spark does not pass "
            "spark.sql.streaming.checkpointLocation or a temporary checkpoint to Python sinks."
        )
    filesystem, root = query.open_filesystem(location)
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
