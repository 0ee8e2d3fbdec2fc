"""What the store tells about a stream and its table, for display and for checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from ..contract import AbortedBy, ManifestRecord, StreamKey
from ..dead_letters import letters_stream
from ..deliveries.contract import Backlog, DeliveryState
from ..row_log.sharing import parsed_settings
from . import manifest_queries, queries
from .dead_letters import count_waiting
from .maintenance import WHOLE
from .tables import maintenance, manifests, operator_actions, streams

IDS_MAX = 500
"""Most ids that are listed in one statement: databases limit its parameters."""


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """The table that a stream has committed to, and its version that contains the last batch."""

    table_id: str
    table_version: int
    batch_id: int | None
    """The last batch; None if an operator has accepted the table at that version."""


@dataclass(frozen=True, slots=True)
class SkippedBatches:
    """The batches of a stream that operators have skipped."""

    batch_ids: tuple[int, ...] = ()
    rows: int = 0
    """With those that the destination had already."""
    unacknowledged: tuple[int, ...] = ()
    """The batches that were skipped after the last `acknowledge`."""


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
    written: WrittenTable | None
    """None before the first commit."""
    maintained_at: datetime | None
    """When a delivery process has last maintained the stream; None: never."""
    skipped: SkippedBatches = SkippedBatches()

    @property
    def pending(self) -> int:
        return self.backlog.batches

    @property
    def oldest_pending_at(self) -> datetime | None:
        """When the oldest pending batch was prepared."""
        return self.backlog.oldest_prepared_at


@dataclass(frozen=True, slots=True)
class OtherQuery:
    """Another query that has written, or is about to write, the same table."""

    query_id: str
    query_name: str
    settings: str
    has_pending: bool


def statuses(connection: Connection, *chosen: sa.ColumnElement[bool]) -> list[StreamStatus]:
    """Return the status of streams in the order in which they were registered.

    The number of queries does not depend on the number of streams, and their cost not on the history.

    Args:
        chosen: conditions on the streams; none: all
    """
    rows = connection.execute(sa.select(streams).where(*chosen).order_by(streams.c.id)).all()
    if not rows:
        return []
    ids = sa.select(streams.c.id).where(*chosen) if chosen else None
    details = _Details(
        newest=_newest(connection, chosen),
        backlogs=manifest_queries.backlogs(connection, ids),
        written=_written_letters(connection, rows),
        letters=count_waiting(connection),
        maintained=_maintained(connection, ids),
        skipped=skipped_of_each(connection),
    )
    return [_status_of(row, details) for row in rows]


@dataclass(frozen=True, slots=True)
class _Details:
    """What other tables have about the streams, by their number."""

    newest: Mapping[int, Row[Any]]
    backlogs: Mapping[int, Backlog]
    written: Mapping[StreamKey, int]
    """Rows that dead-letter destinations have."""
    letters: Mapping[int, int]
    maintained: Mapping[int, datetime]
    skipped: Mapping[int, SkippedBatches]


def _newest(connection: Connection, chosen: Sequence[sa.ColumnElement[bool]]) -> dict[int, Row[Any]]:
    """The record of the highest batch id of each stream. The index of the primary key has the id."""
    others = manifests.alias()
    highest = sa.select(sa.func.max(others.c.batch_id)).where(others.c.stream_id == streams.c.id)
    is_newest = sa.and_(
        manifests.c.stream_id == streams.c.id, manifests.c.batch_id == highest.scalar_subquery()
    )
    query = sa.select(manifests).select_from(streams).join(manifests, is_newest).where(*chosen)
    return {row.stream_id: row for row in connection.execute(query)}


def _maintained(connection: Connection, ids: sa.Select[tuple[int]] | None) -> dict[int, datetime]:
    query = sa.select(maintenance.c.stream_id, maintenance.c.done_at).where(maintenance.c.step == WHOLE)
    if ids is not None:
        query = query.where(maintenance.c.stream_id.in_(ids))
    return {row.stream_id: row.done_at for row in connection.execute(query)}


def _written_letters(connection: Connection, rows: Sequence[Row[Any]]) -> dict[StreamKey, int]:
    """Rows that the dead-letter destinations of these streams have."""
    wanted = {key.query_id for row in rows if (key := _letters_of(row)) is not None}
    if not wanted:
        return {}
    query = sa.select(streams.c.query_id, streams.c.table_uri, streams.c.committed_rows)
    if len(wanted) <= IDS_MAX:
        query = query.where(streams.c.query_id.in_(wanted))
    return {StreamKey(query_id, uri): written for query_id, uri, written in connection.execute(query)}


def _letters_of(row: Row[Any]) -> StreamKey | None:
    """The stream of the dead letters of a stream; None if its query has no dead-letter destination."""
    if '"dead_letters"' not in row.settings:
        return None
    uri = str(parsed_settings(row.settings).get("dead_letters") or "")
    return letters_stream(StreamKey(row.query_id, row.table_uri), uri) if uri else None


def skipped_of_each(connection: Connection) -> dict[int, SkippedBatches]:
    """Return the skipped batches by the number of the stream. Reads operators' decisions, which are few."""
    is_record = sa.and_(
        manifests.c.stream_id == operator_actions.c.stream_id,
        manifests.c.batch_id == operator_actions.c.batch_id,
        manifests.c.aborted_by == AbortedBy.SKIP.value,
    )
    query = (
        sa.select(operator_actions.c.stream_id, operator_actions.c.what)
        .add_columns(manifests.c.batch_id, manifests.c.rows)
        .select_from(operator_actions.outerjoin(manifests, is_record))
        .where(operator_actions.c.what.in_(("skip", "acknowledge")))
        .order_by(operator_actions.c.id)
    )
    found: dict[int, SkippedBatches] = {}
    for stream_id, what, batch_id, rows in connection.execute(query):
        one = found.get(stream_id, SkippedBatches())
        if what == "acknowledge":
            found[stream_id] = replace(one, unacknowledged=())
        elif batch_id is not None and batch_id not in one.batch_ids:  # it was not written again since
            ids, left = (*one.batch_ids, batch_id), (*one.unacknowledged, batch_id)
            found[stream_id] = SkippedBatches(ids, one.rows + rows, left)
    return found


def _status_of(row: Row[Any], details: _Details) -> StreamStatus:
    key, letters = StreamKey(row.query_id, row.table_uri), _letters_of(row)
    newest = details.newest.get(row.id)
    return StreamStatus(
        key=key,
        kind=row.kind,
        query_name=row.query_name,
        created_at=row.created_at,
        last=None if newest is None else manifest_queries.to_record(key, newest),
        committed_batches=row.committed_batches,
        committed_rows=row.committed_rows,
        committed_bytes=row.committed_bytes,
        backlog=details.backlogs.get(row.id, Backlog()),
        delivery=queries.to_delivery_state(row),
        waiting_since=row.waiting_since,
        settings=row.settings,
        pruned_up_to=row.pruned_up_to,
        dead_letters_written=None if letters is None else details.written.get(letters, 0),
        dead_letters_waiting=details.letters.get(row.id, 0),
        written=written_table(row),
        maintained_at=details.maintained.get(row.id),
        skipped=details.skipped.get(row.id, SkippedBatches()),
    )


def written_table(row: Any) -> WrittenTable | None:
    """The table that the stream has committed to; None before its first commit."""
    if row.table_version is None:
        return None
    return WrittenTable(row.table_id, row.table_version, row.table_batch_id)
