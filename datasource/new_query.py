"""A new query that begins to write a table which an earlier one of the same origin has written. Driver only.

A deleted checkpoint makes a new query: Spark gives it a new id and reads the source from the beginning, so
all rows that the table holds already come once more. Nothing in the protocol forbids that: many queries may
write one table. So this is a warning, and an error on request. It looks at the first batch of a query only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..committers.contract import Batch, Committer
from ..committers.errors import CheckpointMismatchError, TableChangedError, shown
from ..committers.safe_text import get_logger
from .options.stream import NewQuery, StreamOptions, normalized_location, origins_of
from .sink import Destination, SupportsOrigins

if TYPE_CHECKING:
    from ..committers.store.sql import OtherQuery, SqlManifestStore

logger = get_logger(__name__)


def check_new_query(
    sink: Destination, store: SqlManifestStore, table: Committer, batch: Batch, overwrite: bool
) -> None:
    """Warn, or refuse, if this is the first batch of a query and may double what an earlier one has written.

    Costs nothing after the first batch. A batch that replaces the table's rows doubles nothing.

    Raises:
        CheckpointMismatchError: with newQuery=refuse. Nothing was written.
        RetryableError: table or store cannot be read now.
    """
    options, stream = sink.options, batch.stream
    if not isinstance(table, SupportsOrigins):
        return
    if batch.batch_id > 0 or overwrite or options.new_query is NewQuery.ALLOW:
        return
    if store.record(stream, 0) is not None or table.token(stream.query_id) is not None:
        return  # it has begun already
    found = _earlier_query(options, store, table, batch)
    if found is None:
        return
    message = (
        f"The table {stream.table_uri} holds rows of an earlier query {found}. The query {stream.query_id} "
        "is new and begins with its first batch: its checkpoint was deleted, or is another one. The rows "
        "that it reads again will be in the table twice."
    )
    if options.new_query is NewQuery.REFUSE:
        raise CheckpointMismatchError(
            f"{message} Nothing was written. Put back the checkpoint that wrote the table; or empty the "
            'table; or, to write these rows beside the others, start the query with .option("newQuery", '
            '"allow").'
        )
    logger.warning(
        '%s If that is not meant, stop the query now. .option("newQuery", "refuse") stops such a query '
        'before it writes anything; "allow" ends this warning.',
        message,
    )


def _earlier_query(
    options: StreamOptions, store: SqlManifestStore, table: SupportsOrigins, batch: Batch
) -> str | None:
    """How the earlier query is the same, for the message; None if there is none, or the table has no rows."""
    for other in store.other_queries(batch.stream):
        same = _same(options, other)
        if same and (other.has_pending or (_holds_batch_of(table, other) and table.has_rows())):
            return f"{same} (query id {shown(other.query_id)})"
    noted = table.recorded_origin(batch.stream.query_id, origins_of(options))
    if noted is None or not table.has_rows():
        return None
    return _same_checkpoint(options) if noted.startswith("checkpoint:") else _same_name(options)


def _same(options: StreamOptions, other: OtherQuery) -> str:
    checkpoint = _checkpoint_of(other.settings)
    if checkpoint and checkpoint == normalized_location(options.checkpoint_location or ""):
        return _same_checkpoint(options)
    return _same_name(options) if options.query_name and options.query_name == other.query_name else ""


def _same_checkpoint(options: StreamOptions) -> str:
    return f"with the same checkpoint directory {shown(options.checkpoint_location or '')}"


def _same_name(options: StreamOptions) -> str:
    return f"of the same name {shown(options.query_name)}"


def _checkpoint_of(settings: str) -> str:
    """The checkpoint directory in settings that `settings_of` has made."""
    try:
        return normalized_location(str(json.loads(settings)["checkpoint"]))
    except (ValueError, KeyError, TypeError):
        return ""


def _holds_batch_of(table: SupportsOrigins, other: OtherQuery) -> bool:
    """False for a table that was dropped and created again, or rolled back: then the rows are gone."""
    try:
        return table.token(other.query_id) is not None
    except TableChangedError:
        return False
