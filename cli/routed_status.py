"""A query with routes in `penstock status`: one row for all of its tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..committers.deliveries.contract import Backlog
from ..committers.row_log.sharing import routes_of
from ..committers.store.status import StreamStatus
from ..datasource.settings import is_of_dead_letters


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the status."""

    stream: StreamStatus
    """Of a query with routes: its own stream, with the sums of all tables."""
    tables: Sequence[StreamStatus] = ()
    """Of a query with routes."""

    @property
    def attended(self) -> list[StreamStatus]:
        """The streams of which the status shows more than the row: of the tables those with a problem."""
        if not self.tables:
            return [self.stream]
        return [
            one
            for one in self.tables
            if one.delivery.error or one.delivery.parked_at or one.skipped.unacknowledged
        ]


def rows_of(streams: Sequence[StreamStatus]) -> list[Row]:
    """Return the rows of all streams of a store, in their order."""
    tables: dict[tuple[str, str], list[StreamStatus]] = {}
    others = []
    for stream in streams:
        query = routes_of(stream.settings)
        if query:
            tables.setdefault((stream.key.query_id, query), []).append(stream)
        else:
            others.append(stream)
    rows = []
    for stream in others:
        own = tables.pop((stream.key.query_id, stream.key.table_uri), [])
        rows.append(Row(_summed(stream, own), own) if own else Row(stream))
    # of a query that was retired; the dead letters of tables are in the sum
    left = [Row(one) for some in tables.values() for one in some if not is_of_dead_letters(one.settings)]
    return rows + left


def _summed(query: StreamStatus, tables: Sequence[StreamStatus]) -> StreamStatus:
    backlogs = [table.backlog for table in tables]
    oldest = [one.oldest_prepared_at for one in backlogs if one.oldest_prepared_at is not None]
    return replace(
        query,
        committed_rows=sum(table.committed_rows for table in tables),
        committed_bytes=sum(table.committed_bytes for table in tables),
        backlog=Backlog(
            max(one.batches for one in backlogs),
            sum(one.files for one in backlogs),
            sum(one.rows for one in backlogs),
            sum(one.size_bytes for one in backlogs),
            min(oldest, default=None),
        ),
        dead_letters_waiting=sum(one.dead_letters_waiting for one in (query, *tables)),
    )
