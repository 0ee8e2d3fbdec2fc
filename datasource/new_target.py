"""Targets that are new to a running query: added to a fan-out, or given by other options. Driver only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..committers.contract import Batch
from ..committers.errors import CheckpointMismatchError
from ..committers.safe_text import get_logger
from .options.stream import NewQuery
from .sink import Sink

if TYPE_CHECKING:
    from ..committers.store.sql import SqlManifestStore

logger = get_logger(__name__)


def can_start_with(store: SqlManifestStore, batch: Batch) -> bool:
    """Return True if the target is new to the query, which has already prepared the batch before.

    The manifests of a batch are prepared together. So if another target has the batch before, and this one
    does not, it was not a target then: nothing is lost.
    """
    others = (stream for stream in store.streams_of(batch.stream.query_id) if stream != batch.stream)
    before = (store.record(stream, batch.batch_id - 1) for stream in others)
    return any(record is not None and not record.awaits_replay for record in before)


def starts_with(store: SqlManifestStore, sink: Sink[Any, Any], prefix: str, batch: Batch) -> bool:
    """`can_start_with`, which reports the batches that the target does not get.

    Args:
        prefix: of the options of a target of a fan-out, `target.NAME.`; empty for the target of a query

    Raises:
        CheckpointMismatchError: the option is newQuery=refuse.
    """
    if not can_start_with(store, batch):
        return False
    last = next((one.batch.batch_id for one in store.history(batch.stream, 1)), None)
    name = prefix[len("target.") : -1]
    target = f"Target {name} ({sink.table_uri})" if name else f"The target {sink.table_uri}"
    what = "is new to" if last is None else f"has the batches up to {last} of"
    message = (
        f"{target} {what} the query {batch.stream.query_id}, and starts with batch {batch.batch_id}. It does "
        f"not get the rows of the batches {'before' if last is None else 'in between'}."
    )
    if sink.options.new_query is NewQuery.REFUSE:
        raise CheckpointMismatchError(
            f"{message} Nothing was written (newQuery=refuse). Start a query of its own with a new "
            f'checkpoint to write all rows to it. Or accept this: .option("{prefix}newQuery", "allow").'
        )
    if sink.options.new_query is NewQuery.WARN:
        logger.warning("%s", message)
    return True
