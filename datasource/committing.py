"""Commit or abort what the tasks of a batch have written. Runs on the driver, in Spark's commit process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..committers.contract import Batch, Committable, ContentT, Manifest, PayloadT, StreamKey, Target
from ..committers.decoupled import DecoupledCommitter
from ..committers.errors import PenstockError
from ..committers.safe_text import get_logger
from ..committers.store.sql import SqlManifestStore, open_store, open_store_in_memory
from ..committers.two_phase import TwoPhaseCommitter
from .batch_plan import CommittableMessage
from .dead_letters import letter_sink_of, try_to_deliver_letters
from .event_time import oldest
from .new_target import can_start_with
from .options.stream import StreamOptions
from .planning import retry, store_url
from .sink import Destination, FansOut, Sink, open_table
from .stores import borrow_store

logger = get_logger(__name__)

BATCHES_PER_PRUNING = 100
BATCHES_PRUNED_MAX = 1000
"""Maximum of one step of the pruning."""
PRUNING_S = 1.0
"""Seconds after which no further step begins: the batch waits for the pruning."""


def commit_stream_batch(
    sink: Sink[PayloadT, ContentT], messages: Sequence[CommittableMessage[PayloadT, ContentT]]
) -> None:
    """Prepare, commit and mark the batch. If its tasks skipped it, check that it is committed."""
    with borrow_store(store_url(sink.options), sink.options.store_wait_s) as store:
        commit_batch(sink, store, messages)


def commit_batch(
    sink: Sink[PayloadT, ContentT],
    store: SqlManifestStore,
    messages: Sequence[CommittableMessage[PayloadT, ContentT]],
) -> None:
    """`commit_stream_batch` with an open store."""
    if isinstance(sink, FansOut):
        from .fanout.committing import commit_fanout, commit_prepared

        commit_fanout(sink, store, messages)
        if not sink.options.is_decoupled:
            for target, own in commit_prepared(sink, store, messages):
                _maintain(target, store, own)
                _deliver_letters(target, store, own.stream)
        return
    committables, table = checked_committables(messages), open_table(sink, store)
    batch = committables[0].batch
    committer: DecoupledCommitter[PayloadT] | TwoPhaseCommitter[PayloadT]
    if sink.options.is_decoupled:  # a delivery commits; the table is read only to check replays
        committer = DecoupledCommitter(store, table, partial(can_start_with, store))
    else:
        committer = TwoPhaseCommitter(store, table, retry(sink.options))
    try:
        check_letters(sink.options, committables)
    except PenstockError:
        table.discard(c.payload for c in committables if c.payload is not None)
        raise
    if committables[0].skipped:
        committer.confirm_skipped(batch)
    elif isinstance(committer, DecoupledCommitter):
        committer.prepare(manifest_of(table, messages), committables, messages[0].digest_before)
    else:
        committer.commit(manifest_of(table, messages), committables)
        _maintain(sink, store, batch)
    if not sink.options.is_decoupled:
        _deliver_letters(sink, store, batch.stream)


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


def commit_batch_write(
    sink: Sink[PayloadT, ContentT], messages: Sequence[CommittableMessage[PayloadT, ContentT]]
) -> None:
    """Commit a batch write. Its manifest need not be durable, because a batch write is never replayed."""
    committables = checked_committables(messages)
    with open_store(sink.options.store) if sink.options.store else open_store_in_memory() as store:
        store.register_stream(committables[0].batch.stream, sink.kind)
        table = open_table(sink, store)
        committer = TwoPhaseCommitter(store, table, retry(sink.options))
        committer.commit(manifest_of(table, messages), committables)


def abort_batch(
    sink: Sink[PayloadT, ContentT], messages: Sequence[CommittableMessage[PayloadT, ContentT] | None]
) -> None:
    """Delete the files of the tasks that succeeded, if the batch did not reach its commit.

    Messages of failed tasks are None. If there is none, the commit itself failed: it may have succeeded, or
    may still do so, and a store that was lost in the meantime would not know. Then nothing is deleted, and
    the clean-up finds the rest.
    """
    written = [message.committable for message in messages if message is not None]
    payloads = [committable.payload for committable in written if committable.payload is not None]
    if payloads and None in messages:
        if isinstance(sink, FansOut):
            from .fanout.committing import discard_fanout

            discard_fanout(sink, [message for message in messages if message is not None])
        else:
            sink.open_table().discard(payloads)


def manifest_of(
    target: Target[PayloadT, ContentT], messages: Sequence[CommittableMessage[PayloadT, ContentT]]
) -> Manifest:
    """Return the manifest of all committables of a batch."""
    content = messages[0].content
    if content is None:
        raise PenstockError("The tasks of a batch wrote rows without a plan for them.")
    committables = [message.committable for message in messages]
    payloads = [committable.payload for committable in committables if committable.payload is not None]
    manifest = target.manifest(committables[0].batch, content, payloads)
    letters = tuple(letter for committable in committables for letter in committable.dead_letters)
    oldest_event_at = oldest(c.oldest_event_at for c in committables)
    return replace(manifest, oldest_event_at=oldest_event_at, dead_letters=letters)


def checked_committables(
    messages: Sequence[CommittableMessage[PayloadT, ContentT]],
) -> list[Committable[PayloadT]]:
    """Return the committables, one per partition; check that all are of one batch and one run."""
    committables = [message.committable for message in messages]
    kinds = {(c.batch, c.run_id, c.skipped, c.version) for c in committables}
    if len(kinds) > 1 or len({c.partition for c in committables}) < len(committables):
        raise PenstockError(
            f"The tasks of one batch do not agree on what they wrote: {sorted(map(str, kinds))}"
        )
    return committables
