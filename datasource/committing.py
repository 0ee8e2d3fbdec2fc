"""Commit or abort what the tasks of a batch have written. Driver, in the process that Spark commits in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..committers.contract import Committable, Manifest
from ..committers.delta.committer import DeltaTableCommitter
from ..committers.delta.manifest import KIND, build_manifest
from ..committers.errors import PenstockError
from ..committers.store.sql import SqlManifestStore, open_store, open_store_in_memory
from ..committers.two_phase import TwoPhaseCommitter
from .batch_plan import CommittableMessage
from .options import DeltaOptions
from .planning import retry, store_url


def commit_stream_batch(options: DeltaOptions, messages: Sequence[CommittableMessage]) -> None:
    """Prepare, commit and mark the batch; if its tasks skipped it, check that it is committed."""
    committables = checked_committables(messages)
    with open_store(store_url(options)) as store:
        committer = _committer(store, options, committables)
        if committables[0].skipped:
            committer.confirm_skipped(committables[0].batch)
        else:
            committer.commit(manifest_of(messages), committables)


def commit_batch_write(options: DeltaOptions, messages: Sequence[CommittableMessage]) -> None:
    """Commit a batch write. Its manifest need not outlive the process: nobody would replay it."""
    committables = checked_committables(messages)
    with open_store(options.store) if options.store else open_store_in_memory() as store:
        store.register(committables[0].batch.stream, KIND)
        _committer(store, options, committables).commit(manifest_of(messages), committables)


def abort_stream_batch(options: DeltaOptions, messages: Sequence[CommittableMessage]) -> None:
    """Delete the files of the tasks that succeeded, unless a manifest names them."""
    committables = [message.committable for message in messages]
    with open_store(store_url(options)) as store:
        _committer(store, options, committables).abort(committables)


def delete_unprepared(options: DeltaOptions, messages: Sequence[CommittableMessage]) -> None:
    """Delete what tasks of a batch write have written that never came to its commit."""
    files = [file.path for message in messages for file in message.committable.files]
    if files:
        uri = messages[0].committable.batch.stream.table_uri
        DeltaTableCommitter(uri, options.storage_options).delete_files(files)


def _committer(
    store: SqlManifestStore, options: DeltaOptions, committables: Sequence[Committable]
) -> TwoPhaseCommitter:
    table = DeltaTableCommitter(committables[0].batch.stream.table_uri, options.storage_options)
    return TwoPhaseCommitter(store, table, retry(options))


def manifest_of(messages: Sequence[CommittableMessage]) -> Manifest:
    """All committables of a batch as one manifest."""
    content = messages[0].content
    if content is None:
        raise PenstockError("The tasks of a batch wrote files without a plan for them.")
    files = tuple(file for message in messages for file in message.committable.files)
    return build_manifest(messages[0].committable.batch, replace(content, files=files))


def checked_committables(messages: Sequence[CommittableMessage]) -> list[Committable]:
    """One committable per partition, all of one batch and one run."""
    committables = [message.committable for message in messages]
    kinds = {(c.batch, c.run_id, c.skipped, c.version) for c in committables}
    if len(kinds) > 1 or len({c.partition for c in committables}) < len(committables):
        raise PenstockError(
            f"The tasks of one batch do not agree on what they wrote: {sorted(map(str, kinds))}"
        )
    return committables
