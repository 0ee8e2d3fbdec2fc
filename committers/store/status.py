"""What the store tells about a stream and its table, for display and for checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ..contract import ManifestRecord, StreamKey
from ..dead_letters import letters_stream
from ..deliveries.contract import Backlog, DeliveryState
from ..row_log.sharing import parsed_settings
from . import queries
from .dead_letters import count_waiting
from .tables import manifests, streams


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """Status of one stream, for display."""

    key: StreamKey
    kind: str
    query_name: str
    created_at: datetime
    last: ManifestRecord | None
    """The highest batch id that was ever prepared, in any state."""
    committed_batches: int
    committed_rows: int
    committed_bytes: int
    backlog: Backlog
    """The PREPARED batches."""
    delivery: DeliveryState
    waiting_since: datetime | None
    """Since when the query waits for its backlog to shrink; None if it does not wait."""
    settings: str
    """What a delivery process needs to open the table: JSON without secrets; may be empty."""
    pruned_up_to: int
    """Records up to this batch may have been pruned; -1 if none."""
    dead_letters_written: int | None
    """Rows that the dead-letter destination of the query has; None if the query has none."""
    dead_letters_waiting: int
    """Dead letters that are not there yet."""

    @property
    def pending(self) -> int:
        return self.backlog.batches

    @property
    def oldest_pending_at(self) -> datetime | None:
        """When the oldest pending batch was prepared."""
        return self.backlog.oldest_prepared_at


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """The table that a stream has committed to, and its version that contains the last batch."""

    table_id: str
    table_version: int
    batch_id: int | None
    """The last batch; None if an operator has accepted the table at that version."""


@dataclass(frozen=True, slots=True)
class OtherQuery:
    """Another query that has written, or is about to write, the same table."""

    query_id: str
    query_name: str
    settings: str
    has_pending: bool


def status_of_all(connection: Connection) -> list[StreamStatus]:
    """Return the status of all streams in the order in which they were registered."""
    rows = connection.execute(sa.select(streams).order_by(streams.c.id)).all()
    written = {StreamKey(row.query_id, row.table_uri): row.committed_rows for row in rows}
    waiting = count_waiting(connection)
    return [_status_of(connection, row, written, waiting.get(row.id, 0)) for row in rows]


def _status_of(
    connection: Connection, row: Row[Any], written: Mapping[StreamKey, int], letters_waiting: int
) -> StreamStatus:
    key = StreamKey(row.query_id, row.table_uri)
    newest = queries.newest(connection, key, limit=1)
    letters_uri = str(parsed_settings(row.settings).get("dead_letters") or "")
    return StreamStatus(
        key=key,
        kind=row.kind,
        query_name=row.query_name,
        created_at=row.created_at,
        last=newest[0] if newest else None,
        committed_batches=row.committed_batches,
        committed_rows=row.committed_rows,
        committed_bytes=row.committed_bytes,
        backlog=queries.backlog(connection, manifests.c.stream_id == row.id),
        delivery=queries.to_delivery_state(row),
        waiting_since=row.waiting_since,
        settings=row.settings,
        pruned_up_to=row.pruned_up_to,
        dead_letters_written=written.get(letters_stream(key, letters_uri), 0) if letters_uri else None,
        dead_letters_waiting=letters_waiting,
    )
