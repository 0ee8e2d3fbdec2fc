"""Commit or abort what the tasks of a batch have written. Runs on the driver, in Spark's commit process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
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
    batch = checked_committables(messages)[0].batch
    try:
        query, messages = query.opened(store, messages)
    except PenstockError:
        discard(query, messages)
        raise
    written = messages[0].targets
    if written:
        targets = []
        for target in written:
            with of_target(target.name):
                targets.append(_target_batch(query, store, target, messages))
        _check_letters(query, targets, messages)
        Preparation(store, targets).prepare()
    names = [target.name for target in written]
    for name, sink in query.targets.items():
        own = batch_of_target(batch, sink)
        if name not in names:
            with of_target(name):
                _committer(query, store, sink, open_table(sink, store), own).confirm_skipped(own)
        if not query.options.is_decoupled and name not in query.later:
            if name in names:
                _maintain(sink, store, own)
            _deliver_letters(sink, store, own.stream)


def _target_batch(
    query: Query, store: SqlManifestStore, target: PlannedTarget, messages: Sequence[CommittableMessage]
) -> TargetBatch:
    sink = query.targets[target.name]
    table, batch = open_table(sink, store), batch_of_target(messages[0].committable.batch, sink)
    committables = [message.of_target(target, batch) for message in messages]
    is_late = target.name in query.later
    return TargetBatch(
        JoiningCommitter(store, table) if is_late else _committer(query, store, sink, table, batch),
        manifest_of(table, target.content, committables),
        committables,
        target.digest_before,
        target.part,
        target.name,
    )


def _committer(
    query: Query,
    store: SqlManifestStore,
    sink: Destination,
    table: PayloadCommitter[PayloadT],
    batch: Batch,
) -> BatchCommitter:
    if not sink.options.is_decoupled:
        return TwoPhaseCommitter(store, table, retry(sink.options))
    starts = partial(can_start_with, store)  # the table is read only to check replays
    if query.options.is_decoupled:
        return DecoupledCommitter(store, table, starts)
    check = partial(_check_as_it_is_now, sink, store, batch.stream)
    return DeliveringCommitter(store, table, starts, retry(sink.options), check)


def _check_as_it_is_now(sink: Destination, store: SqlManifestStore, stream: StreamKey) -> None:
    """`check_same_table`, with the table as it is after the batch was prepared."""
    table, written = open_table(sink, store), store.written_table(stream)
    check_same_table(table, stream, written)


def _check_letters(
    query: Query, targets: Sequence[TargetBatch], messages: Sequence[CommittableMessage]
) -> None:
    """
    Raises:
        SchemaMismatchError: a target has more dead letters than its `deadLetterMax`. What the tasks have
            written for all targets is deleted.
    """
    try:
        for target in targets:
            with of_target(target.name):
                check_letters(query.targets[target.name].options, target.committables)
    except PenstockError:
        discard(query, messages)
        raise


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


def _deliver_letters(sink: Destination, store: SqlManifestStore, stream: StreamKey) -> None:
    """Deliver the dead letters of committed batches. If that fails, the next batch does it."""
    letters = letter_sink_of(sink)
    if letters is not None:
        try_to_deliver_letters(store, stream, letters)


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
        committer.commit(manifest_of(table, target.content, committables), committables)


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
    payloads = [one.committable.payload for one in messages if one.committable.payload is not None]
    owners = {target.part: target.name for one in messages for target in one.targets}
    for part, name in owners.items():
        if payloads:
            target_of(query.targets[name]).discard([parts[part].payload for parts in payloads])


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
