"""What the store tells about a stream and its table, for display and for checks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.engine import Connection, Row

from ..contract import ManifestRecord, StreamKey
from ..deliveries.contract import Backlog, DeliveryState
from . import queries
from .tables import manifests


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


def status_of(connection: Connection, row: Row[Any]) -> StreamStatus:
    """Return the status of the stream in this row of the table of streams."""
    key = StreamKey(row.query_id, row.table_uri)
    newest = queries.newest(connection, key, limit=1)
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
    )
