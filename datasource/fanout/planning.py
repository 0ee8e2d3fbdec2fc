"""Plan a batch for all targets: one pass of the tasks, which write each target's files, and one row log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from ...committers.checkpoint_forks import DigestOf
from ...committers.contract import Batch, Mode, PlannedBatch, TaskWriterFactory
from ...committers.dead_letters import BadRows
from ...committers.decoupled import DecoupledCommitter
from ...writers.bad_rows import with_bad_rows
from ...writers.fanout.writer import Checks, FanoutWriters, PartWriters, of_target
from ...writers.row_log.writer import RowLogWriters, accept_all
from ..batch_plan import BatchPlan
from ..dead_letters import check_letter_sink
from ..decoupled_planning import plan_decoupled
from ..event_time import event_time_column
from ..new_target import can_start_with, starts_with
from ..options.stream import StreamOptions
from ..plan_cache import PLANS, PlanCache, PlanKey
from ..settings import register_stream
from ..sink import FansOut, Sink, WritesOnce, mode_of, open_table
from .content import FanoutContent, PlannedTarget, batch_of_target
from .row_logs import check_row_logs

if TYPE_CHECKING:
    import pyarrow as pa

    from ...committers.store.sql import SqlManifestStore


def plan_fanout(
    sink: FansOut,
    store: SqlManifestStore,
    batch: Batch,
    rows: pa.Schema,
    overwrite: bool,
    digest_of: DigestOf = lambda _: None,
    plans: PlanCache = PLANS,
) -> BatchPlan[Any, Any]:
    """Plan a batch with the checkpoint already read and the store open. Raises as `plan_stream_batch`.

    Each target decides for itself, with its own record and token, whether the tasks write the batch for it.
    """
    digest_of = cache(digest_of)
    targets = dict(sink.target_sinks)
    batches = {name: batch_of_target(batch, target.table_uri) for name, target in targets.items()}
    for name, target in targets.items():
        with of_target(name):
            check_letter_sink(target)
    event_time = event_time_column(rows, next(iter(targets.values())).options.event_time)
    _check_all_first(store, targets, batches, digest_of)
    planned: dict[str, PlannedBatch[Any, Any]] = {}
    for name, target in targets.items():
        key = PlanKey(batches[name].stream, target, rows, overwrite)
        starts = partial(starts_with, store, target, f"target.{name}.")
        with of_target(name):
            one = plan_decoupled(key, store, batches[name], digest_of, plans, starts)
        if one is not None:
            planned[name] = one
    check_row_logs(
        {name: one.writers for name, one in planned.items() if isinstance(one.writers, RowLogWriters)}
    )
    for name, one in planned.items():
        register_stream(targets[name], store, batches[name].stream, one.target_id)
    if not planned:
        return BatchPlan(batch)
    if isinstance(sink, WritesOnce):
        parts, content = _one_part(sink, planned, rows, mode_of(overwrite), batch.batch_id)
    else:
        parts, content = _parts(
            {
                name: replace(one, writers=_with_bad_rows(one.writers, targets[name].options))
                for name, one in planned.items()
            }
        )
    before = digest_of(batch.batch_id - 1) if batch.batch_id > 0 else None
    return BatchPlan(batch, FanoutWriters(parts), content, event_time=event_time, digest_before=before)


def _with_bad_rows(writers: TaskWriterFactory[Any], options: StreamOptions) -> TaskWriterFactory[Any]:
    """Return writers that do with bad rows what the option `badRows` of the target says.

    A row log may have several readers, so its rows are the same for all of them: with another option than
    `fail`, the delivery finds the rows that cannot be sent.
    """
    if options.bad_rows is not BadRows.FAIL and isinstance(writers, RowLogWriters):
        return replace(writers, check=accept_all)
    return with_bad_rows(writers, options.bad_rows)


def _check_all_first(
    store: SqlManifestStore,
    targets: Mapping[str, Sink[Any, Any]],
    batches: Mapping[str, Batch],
    digest_of: DigestOf,
) -> None:
    """Let each target refuse a replay before any target aborts its batches for it.

    Raises:
        CheckpointMismatchError: a target has the batch from other source offsets.
    """
    if all(store.record(one.stream, one.batch_id) is None for one in batches.values()):
        return
    for name, target in targets.items():
        starts = partial(can_start_with, store)
        with of_target(name):
            DecoupledCommitter(store, open_table(target, store), starts).check(batches[name], digest_of)


def _parts(
    planned: Mapping[str, PlannedBatch[Any, Any]],
) -> tuple[tuple[PartWriters, ...], FanoutContent]:
    """Return what the tasks write, and which part is whose. Targets with the same row log share a part."""
    parts: list[list[tuple[str, TaskWriterFactory[Any]]]] = []
    logs: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    content = []
    for name, one in planned.items():
        writers, part = one.writers, len(parts)
        if isinstance(writers, RowLogWriters):
            part = logs.setdefault((writers.location, tuple(sorted(writers.storage_options.items()))), part)
        if part == len(parts):
            parts.append([])
        parts[part].append((name, writers))
        content.append(PlannedTarget(name, part, one.content))
    return tuple(map(_joined, parts)), tuple(content)


def _one_part(
    sink: WritesOnce,
    planned: Mapping[str, PlannedBatch[Any, Any]],
    rows: pa.Schema,
    mode: Mode,
    batch_id: int,
) -> tuple[tuple[PartWriters, ...], FanoutContent]:
    """Return what the tasks write once for all targets, also if some of these have the batch already."""
    writers = {name: one.writers for name, one in planned.items()}
    for name, target in sink.target_sinks.items():
        if name not in writers:
            writers[name] = target.open_table().plan_batch(rows, mode, batch_id).writers
    options = next(iter(sink.target_sinks.values())).options  # a bad row of one target is one of all
    joined = _with_bad_rows(sink.joined(writers), options)
    part = PartWriters(", ".join(planned), joined)
    return (part,), tuple(PlannedTarget(name, 0, one.content) for name, one in planned.items())


def _joined(writers: Sequence[tuple[str, TaskWriterFactory[Any]]]) -> PartWriters:
    names = ", ".join(name for name, _ in writers)
    first = writers[0][1]
    if len(writers) == 1 or not isinstance(first, RowLogWriters):
        return PartWriters(names, first)
    checks = tuple((name, one.check) for name, one in writers if isinstance(one, RowLogWriters))
    return PartWriters(names, RowLogWriters(first.location, first.storage_options, Checks(checks)))
