"""Commit or abort what the tasks of a batch have written. Runs on the driver, in Spark's commit process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

from ..committers.contract import Batch, Committable, ContentT, Manifest, PayloadT, StreamKey
from ..committers.errors import PenstockError, of_target
from ..committers.protocol.decoupled import DecoupledCommitter, DeliveringCommitter, JoiningCommitter
from ..committers.protocol.preparing import BatchCommitter, Preparation, TargetBatch
from ..committers.protocol.two_phase import TwoPhaseCommitter
from ..committers.store.sql import SqlManifestStore, open_store, open_store_in_memory
from ..committers.target import PayloadCommitter, Target
from ..committers.texts.safe_text import get_logger
from ..writers.parts import PartPayloads
from .dead_letters import letter_sink_of, try_to_deliver_letters
from .observing import CommitObserver, observing_commit
from .options.stream import StreamOptions
from .planning.batch_plan import CommittableMessage, PlannedTarget
from .planning.event_time import oldest
from .planning.new_target import can_start_with
from .planning.plan import retry, store_url
from .query import Query, batch_of_target
from .sink import Destination, Sink, check_same_table, open_table, target_of
from .stores import borrow_store

logger = get_logger(__name__)

BATCHES_PER_PRUNING = 100
BATCHES_PRUNED_MAX = 1000
"""Maximum of one step of the pruning."""
PRUNING_S = 1.0
"""Seconds after which no further step begins: the batch waits for the pruning."""


def commit_stream_batch(query: Query, messages: Sequence[CommittableMessage]) -> None:
    """Prepare, commit and mark the batch. Check that the targets which the tasks left out have it."""
    with borrow_store(store_url(query.options), query.options.store_wait_s) as store:
        commit_batch(query, store, messages)


def commit_batch(query: Query, store: SqlManifestStore, messages: Sequence[CommittableMessage]) -> None:
    """`commit_stream_batch` with an open store.

    The manifests of all targets become durable together, or none does. Then each target goes on alone: it is
    committed now, or by a delivery process.
    """
    with observing_commit(messages, query.options) as observer:
        _commit_batch(query, store, messages, observer)


def _commit_batch(
    query: Query,
    store: SqlManifestStore,
    messages: Sequence[CommittableMessage],
    observer: CommitObserver,
) -> None:
    batch, written_at = checked_committables(messages)[0].batch, datetime.now(timezone.utc)
    try:
        query, messages = query.opened(store, messages)
        opened = {name: _open(query, store, name) for name in query.targets}
        written = {target.name: target for target in messages[0].targets}
        sources = next((one.sources for one in messages if one.sources), ())
        observer.begins(batch, {name: opened[name].sink for name in written}, sources)
        targets = [
            _target_batch(opened[name], target, messages, written_at) for name, target in written.items()
        ]
    except PenstockError:
        discard(query, messages)
        raise
    if targets:
        Preparation(store, targets, observer).prepare()
    for goal in opened.values():
        own = batch_of_target(batch, goal.sink)
        if goal.name not in written:
            with of_target(goal.name):
                goal.committer.confirm_skipped(own)
            observer.skipped(store, own, goal.sink.kind)
        if goal.is_committed_now:
            _finish(goal.sink, store, own, is_new=goal.name in written)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A target of the query, opened to commit."""

    name: str
    sink: Sink[Any, Any]
    table: Target[Any, Any]
    committer: BatchCommitter
    is_committed_now: bool
    """False: a delivery process commits its batches."""


def _open(query: Query, store: SqlManifestStore, name: str) -> _Opened:
    sink = query.targets[name]
    is_later = name in query.later
    with of_target(name):
        table = open_table(sink, store)
        committer = JoiningCommitter(store, table) if is_later else _committer(query, store, sink, table)
    return _Opened(name, sink, table, committer, not query.options.is_decoupled and not is_later)


def _committer(
    query: Query, store: SqlManifestStore, sink: Destination, table: PayloadCommitter[Any]
) -> BatchCommitter:
    if not sink.options.is_decoupled:
        return TwoPhaseCommitter(store, table, retry(sink.options))
    starts = partial(can_start_with, store)  # the table is read only to check replays
    if query.options.is_decoupled:
        return DecoupledCommitter(store, table, starts)
    check = partial(_check_as_it_is_now, sink, store)
    return DeliveringCommitter(store, table, starts, retry(sink.options), check)


def _check_as_it_is_now(sink: Destination, store: SqlManifestStore, stream: StreamKey) -> None:
    """`check_same_table`, with the table as it is after the batch was prepared."""
    table, written = open_table(sink, store), store.written_table(stream)
    check_same_table(table, stream, written)


def _target_batch(
    opened: _Opened, planned: PlannedTarget, messages: Sequence[CommittableMessage], written_at: datetime
) -> TargetBatch:
    """
    Raises:
        SchemaMismatchError: the target has more dead letters than its `deadLetterMax`.
    """
    with of_target(opened.name):
        batch = batch_of_target(messages[0].committable.batch, opened.sink)
        committables = [message.of_target(planned, batch) for message in messages]
        check_letters(opened.sink.options, committables)
        manifest = manifest_of(opened.table, planned.content, committables)
        planned_at = next((one.planned_at for one in messages if one.planned_at is not None), None)
        manifest = replace(
            manifest,
            sources=next((one.sources for one in messages if one.sources), ()),
            planned_at=planned_at,
            written_at=None if planned_at is None else written_at,
        )
    return TargetBatch(
        opened.committer, manifest, committables, planned.digest_before, planned.part, opened.name
    )


def check_letters(options: StreamOptions, committables: Sequence[Committable[PayloadT]]) -> None:
    """
    Raises:
        SchemaMismatchError: the batch has more dead letters than `deadLetterMax`.
    """
    limit = options.dead_letter_max
    letters = [letter for committable in committables for letter in committable.dead_letters]
    if limit is None or not letters:
        return
    batch, rows = committables[0].batch, sum(committable.rows for committable in committables)
    limit.check(len(letters), rows, f"batch {batch.batch_id} of {batch.stream}", letters[-1])


def _finish(sink: Destination, store: SqlManifestStore, batch: Batch, *, is_new: bool) -> None:
    """Maintain the table of a committed batch, and deliver dead letters. Or the next batch does it."""
    if is_new:
        _maintain(sink, store, batch)
    letters = letter_sink_of(sink)
    if letters is not None:
        try_to_deliver_letters(store, batch.stream, letters)


def _maintain(sink: Destination, store: SqlManifestStore, batch: Batch) -> None:
    """Maintain table and store. The batch is already committed, so an error must not fail it."""
    try:
        sink.maintain(store, batch)
        if batch.batch_id % BATCHES_PER_PRUNING == 0:  # no delivery process does it for a coupled stream
            prune(sink, store, batch)
    except PenstockError as error:
        logger.warning("Maintenance of %s is postponed to the next batch: %s", sink.table_uri, error)


def prune(sink: Destination, store: SqlManifestStore, batch: Batch) -> None:
    """Delete old records until none is left, or until the batch has waited long enough."""
    kept_s, kept_max = sink.options.delivered_s_max, sink.options.delivered_max
    started, pruned, is_done = time.monotonic(), 0, False
    while not is_done:
        some = store.prune(batch.stream, kept_s, kept_max, BATCHES_PRUNED_MAX)
        pruned, is_done = pruned + some, some < BATCHES_PRUNED_MAX
        if not is_done and time.monotonic() - started >= PRUNING_S:
            logger.info(
                "Removed %d old batches of %s from the store. More are left: batch %d continues.",
                pruned,
                batch.stream,
                batch.batch_id + BATCHES_PER_PRUNING,
            )
            return


def commit_batch_write(sink: Sink[Any, Any], messages: Sequence[CommittableMessage]) -> None:
    """Commit a batch write. Its manifest need not be durable, because a batch write is never replayed."""
    batch = checked_committables(messages)[0].batch
    (target,) = messages[0].targets
    committables = [message.of_target(target, batch) for message in messages]
    with open_store(sink.options.store) if sink.options.store else open_store_in_memory() as store:
        store.register_stream(batch.stream, sink.kind)
        table = open_table(sink, store)
        committer = TwoPhaseCommitter(store, table, retry(sink.options))
        manifest = manifest_of(table, target.content, committables)
        with observing_commit(messages, sink.options) as observer:
            observer.begins(batch, {"": sink}, ())
            committer.commit(manifest, committables, observer)


def abort_batch(query: Query, messages: Sequence[CommittableMessage | None]) -> None:
    """Delete the files of the tasks that succeeded, if the batch did not reach its commit.

    Messages of failed tasks are None. If there is none, the commit itself failed: it may have succeeded, or
    may still do so, and a store that was lost in the meantime would not know. Then nothing is deleted, and
    the clean-up finds the rest.
    """
    if None in messages:
        discard(query, [message for message in messages if message is not None])


def discard(query: Query, messages: Sequence[CommittableMessage]) -> None:
    """Delete what the tasks have written, part by part."""
    written = [one.committable.payload for one in messages if one.committable.payload is not None]
    part_of = {planned.name: planned.part for one in messages for planned in one.targets}
    left = set(part_of.values()) if written else set()
    for name, sink in query.targets.items():
        part = part_of.get(name)
        if part in left:
            target_of(sink).discard([parts[part].payload for parts in written])
            left.discard(part)


def manifest_of(
    target: Target[PayloadT, ContentT], content: ContentT, committables: Sequence[Committable[PayloadT]]
) -> Manifest:
    """Return the manifest of all committables of a batch."""
    payloads = [committable.payload for committable in committables if committable.payload is not None]
    manifest = target.manifest(committables[0].batch, content, payloads)
    letters = tuple(letter for committable in committables for letter in committable.dead_letters)
    oldest_event_at = oldest(c.oldest_event_at for c in committables)
    return replace(manifest, oldest_event_at=oldest_event_at, dead_letters=letters)


def checked_committables(messages: Sequence[CommittableMessage]) -> list[Committable[PartPayloads]]:
    """Return the committables, one per partition; check that all are of one batch and one run."""
    committables = [message.committable for message in messages]
    kinds = {(c.batch, c.run_id, c.skipped, c.version) for c in committables}
    if len(kinds) > 1 or len({c.partition for c in committables}) < len(committables):
        raise PenstockError(
            f"The tasks of one batch do not agree on what they wrote: {sorted(map(str, kinds))}"
        )
    if any(message.targets and message.committable.skipped for message in messages):
        raise PenstockError("The tasks of a batch were to write rows, and have written nothing.")
    return committables
