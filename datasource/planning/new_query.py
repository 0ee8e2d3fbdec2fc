"""Detect a new query on a table that an earlier query of the same origin has written. Driver only.

If a checkpoint is deleted, Spark starts a new query with a new id and reads the source from the beginning, so
that all rows are written once more. The protocol allows that, because many queries may write to one table. So
this is a warning, or an error on request, and only for the first batch of a query.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ...committers.contract import Batch
from ...committers.errors import CheckpointMismatchError, TableChangedError, shown
from ...committers.target import Committer
from ...committers.texts.safe_text import get_logger
from ..options.stream import NewQuery, StreamOptions, normalized_location, origins_of
from ..sink import Destination, SupportsOrigins

if TYPE_CHECKING:
    from ...committers.store.sql import SqlManifestStore
    from ...committers.store.status import OtherQuery

logger = get_logger(__name__)


def check_new_query(
    sink: Destination, store: SqlManifestStore, table: Committer, batch: Batch, overwrite: bool
) -> None:
    """Warn or refuse if this is the first batch of a query and may duplicate rows of an earlier query.

    No cost after the first batch. A batch that replaces all rows of the table cannot duplicate any.

    Raises:
        CheckpointMismatchError: the option is newQuery=refuse, and there are such rows, or the query has no
            name. Nothing was written.
        RetryableError: the table or the store cannot be read now.
    """
    message = earlier_rows(sink, store, table, batch, overwrite)
    if message:
        logger.warning(
            '%s If that is not intended, stop the query now. With .option("newQuery", "refuse") the query '
            'fails before it writes anything; with "allow" this warning is not logged.',
            message,
        )


def earlier_rows(
    sink: Destination, store: SqlManifestStore, table: Committer, batch: Batch, overwrite: bool
) -> str:
    """Return what `check_new_query` warns of; empty if there is nothing. Raises as it does."""
    options, stream = sink.options, batch.stream
    if not isinstance(table, SupportsOrigins):
        return ""
    if batch.batch_id > 0 or overwrite or options.new_query is NewQuery.ALLOW:
        return ""
    if store.record(stream, 0) is not None or table.token(stream.query_id) is not None:
        return ""  # the query has already started
    found = _earlier_query(options, store, table, batch)
    if found is None:
        _check_has_name(options)
        return ""
    message = (
        f"The table {stream.table_uri} already has rows of an earlier query {found}. The query "
        f"{stream.query_id} is new and starts with its first batch: its checkpoint was deleted, or it has "
        "another one. Rows that it reads again will be in the table twice."
    )
    if options.new_query is NewQuery.REFUSE:
        raise CheckpointMismatchError(
            f"{message} Nothing was written. Restore the checkpoint that wrote the table, or empty the "
            "table. To add these rows to the existing ones, start the query with "
            '.option("newQuery", "allow").'
        )
    return message


def _check_has_name(options: StreamOptions) -> None:
    if options.new_query is NewQuery.REFUSE and not options.query_name:
        raise CheckpointMismatchError(
            "newQuery=refuse needs the name of the query: if its checkpoint is lost and it gets another "
            "directory, only the name tells that it has written to the table before. Nothing was written. "
            'Set .queryName("...") on the stream writer, the same at each start.'
        )


def _earlier_query(
    options: StreamOptions, store: SqlManifestStore, table: SupportsOrigins, batch: Batch
) -> str | None:
    """Return a description of the earlier query; None if there is none, or if the table has no rows."""
    for other in store.other_queries(batch.stream):
        same = _same(options, other)
        if same and (other.has_pending or (_holds_batch_of(table, other) and table.has_rows())):
            return f"{same} (query id {shown(other.query_id)})"
    origin = table.recorded_origin(batch.stream.query_id, origins_of(options))
    if origin is None or not table.has_rows():
        return None
    return _same_checkpoint(options) if origin.startswith("checkpoint:") else _same_name(options)


def _same(options: StreamOptions, other: OtherQuery) -> str:
    checkpoint = checkpoint_of(other.settings)
    if checkpoint and checkpoint == normalized_location(options.checkpoint_location or ""):
        return _same_checkpoint(options)
    return _same_name(options) if options.query_name and options.query_name == other.query_name else ""


def _same_checkpoint(options: StreamOptions) -> str:
    return f"with the same checkpoint directory {shown(options.checkpoint_location or '')}"


def _same_name(options: StreamOptions) -> str:
    return f"with the same name {shown(options.query_name)}"


def checkpoint_of(settings: str) -> str:
    """Return the checkpoint directory in settings of `settings_of`."""
    try:
        return normalized_location(str(json.loads(settings)["checkpoint"]))
    except (ValueError, KeyError, TypeError):
        return ""


def _holds_batch_of(table: SupportsOrigins, other: OtherQuery) -> bool:
    """Return False for a table that was dropped and re-created, or rolled back: it no longer has the rows."""
    try:
        return table.token(other.query_id) is not None
    except TableChangedError:
        return False
