"""Prepare or abort what the tasks of a batch have written for all targets. Runs in Spark's commit process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...committers.commit_runner import CommitRunner
from ...committers.contract import Batch, Committable, ManifestState
from ...committers.decoupled import DecoupledCommitter
from ...committers.errors import PenstockError, RetryableError
from ...committers.joint_preparation import JointPreparation, TargetBatch
from ...committers.recovery import Recovery
from ...writers.fanout.writer import PartPayload, of_target
from ..batch_plan import CommittableMessage
from ..committing import check_letters, checked_committables, manifest_of
from ..new_target import can_start_with
from ..planning import retry
from ..sink import FansOut, Sink, check_same_table, open_table
from .content import FanoutContent, PlannedTarget, batch_of_target

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore

Messages = Sequence[CommittableMessage[Any, Any]]


def commit_fanout(sink: FansOut, store: SqlManifestStore, messages: Messages) -> None:
    """Prepare the batch for all targets, or for none. Check that those which the tasks left out have it."""
    committables = checked_committables(messages)
    batch = committables[0].batch
    content: FanoutContent = () if committables[0].skipped else messages[0].content or ()
    if content:
        written = [_target_batch(sink.target_sinks[one.name], store, one, messages) for one in content]
        _check_letters(sink, content, written, messages)
        JointPreparation(store, written).prepare(messages[0].digest_before)
    for name in sink.target_sinks.keys() - {one.name for one in content}:
        target = sink.target_sinks[name]
        with of_target(name):
            DecoupledCommitter(store, open_table(target, store)).confirm_skipped(
                batch_of_target(batch, target.table_uri)
            )


def commit_prepared(
    sink: FansOut, store: SqlManifestStore, messages: Messages
) -> list[tuple[Sink[Any, Any], Batch]]:
    """Commit the batch to all targets, and those before it that a crash has left. Return the targets.

    For a coupled query. A delivery process may deliver the targets as well.

    Raises:
        RetryableError: a batch is not committed, and stays prepared.
    """
    committed = []
    for name, target in sink.target_sinks.items():
        batch = batch_of_target(messages[0].committable.batch, target.table_uri)
        with of_target(name):
            _commit_all(target, store, batch)
        committed.append((target, batch))
    return committed


def _commit_all(sink: Sink[Any, Any], store: SqlManifestStore, batch: Batch) -> None:
    table, written = open_table(sink, store), store.written_table(batch.stream)
    check_same_table(table, batch.stream, written)
    recovery = Recovery(store, table, CommitRunner(store, table, retry(sink.options)))
    for recovered in recovery.recover_each(batch.stream):
        if recovered.state is not ManifestState.COMMITTED:
            raise RetryableError(
                f"Batch {recovered.record.batch.batch_id} of {batch.stream} is not committed: "
                f"{recovered.reason}. Start the query again."
            )


def _check_letters(
    sink: FansOut, content: FanoutContent, written: Sequence[TargetBatch], messages: Messages
) -> None:
    """
    Raises:
        SchemaMismatchError: a target has more dead letters than its `deadLetterMax`. What the tasks have
            written for all targets is deleted.
    """
    try:
        for planned, one in zip(content, written, strict=True):
            with of_target(planned.name):
                check_letters(sink.target_sinks[planned.name].options, one.committables)
    except PenstockError:
        discard_fanout(sink, messages)
        raise


def _target_batch(
    sink: Sink[Any, Any], store: SqlManifestStore, planned: PlannedTarget, messages: Messages
) -> TargetBatch:
    target = open_table(sink, store)
    own = [_own(message, planned, sink.table_uri) for message in messages]
    committer = DecoupledCommitter(store, target, partial(can_start_with, store))
    committables = [message.committable for message in own]
    return TargetBatch(committer, manifest_of(target, own), committables, planned.part)


def _own(
    message: CommittableMessage[Any, Any], planned: PlannedTarget, table_uri: str
) -> CommittableMessage[Any, Any]:
    """Return the message as if the target were the only one."""
    committable: Committable[Any] = message.committable
    own = replace(committable, batch=batch_of_target(committable.batch, table_uri))
    if committable.payload is not None:
        part: PartPayload = committable.payload[planned.part]
        own = replace(own, payload=part.payload, dead_letters=part.dead_letters, rows=part.rows)
    return replace(message, committable=own, content=planned.content)


def discard_fanout(sink: FansOut, messages: Messages) -> None:
    """Delete what the tasks have written, part by part."""
    content: FanoutContent = next((one.content for one in messages if one.content), ())
    owners = {one.part: one.name for one in content}
    for part, name in owners.items():
        payloads = [
            message.committable.payload[part].payload
            for message in messages
            if message.committable.payload is not None
        ]
        sink.target_sinks[name].open_table().discard(payloads)
