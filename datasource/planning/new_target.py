"""Targets that are new to a running query: another table, or one that was added to a fan-out. Driver only.

Spark's checkpoint belongs to a query, not to a table. A query that is started on its old checkpoint with
another table continues at its offsets, and the table never gets the rows before. So that is an error, unless
the option `newTarget` says that it is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...committers.contract import Batch
from ...committers.errors import CheckpointMismatchError
from ...committers.origins import origin
from ...committers.progress import StoresProgress
from ...committers.target import Committer
from ...committers.texts.safe_text import get_logger
from ..options.stream import NewTarget, normalized_location
from ..sink import Destination, Sink, SupportsOrigins
from .new_query import checkpoint_of

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore

logger = get_logger(__name__)


def check_new_target(
    sink: Destination, store: SqlManifestStore, table: Committer, batch: Batch, *, in_function: bool = False
) -> None:
    """Refuse to start in a table that does not have the batches before. For coupled streams.

    A table that has earlier batches of the query, and a store that knows no other table, are no reason: the
    store was lost, and batches without rows leave nothing in the table. Nor is a store that knows no other
    table if it has the token itself.

    Args:
        in_function: a function of `foreachBatch` writes the batches, and may have left some out

    Raises:
        CheckpointMismatchError: the batches before are not in the table, and the option is newTarget=refuse.
            Nothing was written.
    """
    if batch.batch_id == 0 or store.record(batch.stream, batch.batch_id - 1) is not None:
        return
    token = table.token(batch.stream.query_id)
    last = -1 if token is None else token.batch_id
    if last >= batch.batch_id - 1:
        return
    if token is None and not isinstance(table, StoresProgress):
        is_new = not _has_new_id(sink, store, table, batch)
    else:
        is_new = in_function or can_start_with(store, batch)
    if is_new:
        _accept(sink, store, "", batch, max(last, _last(store, batch)), in_function=in_function)


def can_start_with(store: SqlManifestStore, batch: Batch) -> bool:
    """Return True if the target is new to the query, which has already prepared the batch before.

    The manifests of a batch are prepared together. So if another target has the batch before, and this one
    does not, it was not a target then: nothing is lost.
    """
    others = (stream for stream in store.streams_of(batch.stream.query_id) if stream != batch.stream)
    before = (store.record(stream, batch.batch_id - 1) for stream in others)
    return any(record is not None and not record.awaits_replay for record in before)


def starts_with(
    store: SqlManifestStore, sink: Sink[Any, Any], prefix: str, batch: Batch, *, in_function: bool = False
) -> bool:
    """`can_start_with`, which asks the option. For decoupled streams.

    Args:
        prefix: of the options of a target of a fan-out, `target.NAME.`; empty for the target of a query
        in_function: a function of `foreachBatch` writes the batches

    Raises:
        CheckpointMismatchError: the option is newTarget=refuse, or it cannot be seen if a function has left
            out the batch before, or the store has lost it. Nothing was written.
    """
    if not can_start_with(store, batch):
        if in_function:
            raise CheckpointMismatchError(_left_out(batch))
        return False
    _accept(sink, store, prefix, batch, _last(store, batch), in_function=in_function)
    return True


def _last(store: SqlManifestStore, batch: Batch) -> int:
    """Return the last batch that the store knows of the stream; -1 if none."""
    return next((one.batch.batch_id for one in store.history(batch.stream, 1)), -1)


def report_left_targets(store: SqlManifestStore, batch: Batch, addresses: Sequence[str]) -> None:
    """Warn once in a process of targets that had the batch before, and that the query has no longer.

    Args:
        addresses: of all targets that it has
    """
    query_id = batch.stream.query_id
    if batch.batch_id == 0 or (query_id, *addresses) in _asked:
        return
    _asked.add((query_id, *addresses))
    left = [stream for stream in store.streams_of(query_id) if stream.table_uri not in addresses]
    records = {stream.table_uri: store.record(stream, batch.batch_id - 1) for stream in left}
    names = [uri for uri, record in records.items() if record is not None and not record.awaits_replay]
    if names:
        logger.warning(
            "The query %s no longer writes to %s: its rows are missing there from batch %d on. What is "
            "prepared for it is still delivered. If that is not intended, stop the query now, and start it "
            "with all targets.",
            query_id,
            ", ".join(names),
            batch.batch_id,
        )


_asked: set[tuple[str, ...]] = set()
"""Queries of this process with their targets, for which `report_left_targets` has asked the store."""


def _accept(
    sink: Destination, store: SqlManifestStore, prefix: str, batch: Batch, last: int, *, in_function: bool
) -> None:
    """Report the batches that the target does not get.

    Args:
        last: the last batch of the query that the target has; -1 if none
    """
    name = prefix[len("target.") : -1]
    target = f"Target {name} ({sink.table_uri})" if name else f"The target {sink.table_uri}"
    what = "is new to" if last < 0 else f"has the batches up to {last} of"
    message = (
        f"{target} {what} the query {batch.stream.query_id}, and starts with batch {batch.batch_id}. It does "
        f"not get the rows of the batches {'before' if last < 0 else 'in between'}."
    )
    if sink.options.new_target is NewTarget.ALLOW:
        logger.warning("%s", message)
        return
    if in_function:
        message += " The function of foreachBatch has not written them to it."
    others = [one.table_uri for one in store.streams_of(batch.stream.query_id) if one != batch.stream]
    wrote = f" So far this query has written to {', '.join(others)}." if others and not name else ""
    raise CheckpointMismatchError(
        f"{message}{wrote} Nothing was written. Start a query of its own with a new checkpoint to write all "
        "rows to it. Or, if the rows before are not wanted there, or another sink has written them: "
        f'.option("{prefix}newTarget", "allow").'
    )


def _left_out(batch: Batch) -> str:
    return (
        f"Neither the manifest store nor {batch.stream.table_uri} has batch {batch.batch_id - 1} of query "
        f"{batch.stream.query_id}: the function of foreachBatch has not written it there, or it was lost "
        "with the store. Nothing was written. With delivery=decoupled a function must write each batch, also "
        "one without rows. If the store was lost, restore it. To continue without the batches before, start "
        "the query once with delivery=coupled and newTarget=allow until one batch is committed."
    )


def _has_new_id(sink: Destination, store: SqlManifestStore, table: Committer, batch: Batch) -> bool:
    """Return True if the table has batches of this checkpoint under another query id.

    `penstock reset-query-id` gives a checkpoint a new id; its query continues in the table that it has
    written.
    """
    checkpoint = normalized_location(sink.options.checkpoint_location or "")
    if any(checkpoint_of(one.settings) == checkpoint for one in store.other_queries(batch.stream)):
        return True
    if not isinstance(table, SupportsOrigins):
        return False
    return table.recorded_origin(batch.stream.query_id, [origin("checkpoint", checkpoint)]) is not None
