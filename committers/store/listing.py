"""Search, filter and paging of streams in SQL, so that a page of a store with many streams costs little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from ..contract import ManifestState, StreamKey
from .status import StreamStatus, skipped_of_each, statuses
from .tables import IS_PREPARED, dead_letters, manifests, streams


class StreamState(str, Enum):
    """What the stream does."""

    IDLE = "IDLE"
    """All its batches are committed."""
    PENDING = "PENDING"
    """Batches are prepared and not committed yet."""
    FAILING = "FAILING"
    """The last delivery has failed, and is tried again."""
    PARKED = "PARKED"
    """No batch is delivered until `retry`."""

    def __str__(self) -> str:
        return self.value


BY_URGENCY = (StreamState.PARKED, StreamState.FAILING, StreamState.PENDING, StreamState.IDLE)


class Sort(str, Enum):
    """The order of a list of streams."""

    STATE = "state"
    """The most urgent states first, and of these the longest lag."""
    LAG = "lag"
    NAME = "name"
    ROWS = "rows"
    """The most committed rows first."""


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """Which streams are wanted. Without values, all."""

    text: str = ""
    """Each word must be in the name of the query, its id or the address of the table, in any case."""
    state: StreamState | None = None
    kind: str = ""
    has_letters: bool = False
    """Only those with dead letters that are not in their table yet."""
    has_skipped: bool = False
    """Only those with skipped batches that nobody has acknowledged."""


@dataclass(frozen=True, slots=True)
class StreamList:
    """A page of the streams that a filter finds, and sums over all that it finds."""

    streams: Sequence[StreamStatus]
    found: int
    states: Mapping[StreamState, int]
    """How many streams of each state the filter would find without its own state."""
    pending_batches: int
    pending_rows: int
    committed_rows: int
    kinds: Sequence[str] = field(default=())
    """Of all streams of the store."""
    letters: int = 0
    """Streams with dead letters that wait, of the whole store."""
    skipped: int = 0
    """Streams with skipped batches that nobody has acknowledged, of the whole store."""


_BACKLOGS = (
    sa.select(
        manifests.c.stream_id,
        sa.func.count().label("batches"),
        sa.func.sum(manifests.c.rows).label("rows"),
        sa.func.min(manifests.c.prepared_at).label("oldest"),
    )
    .where(IS_PREPARED)
    .group_by(manifests.c.stream_id)
    .subquery()
)
_IS_IN_STATE = {
    StreamState.PARKED: streams.c.parked_at.is_not(None),
    StreamState.FAILING: streams.c.tries > 0,
    StreamState.PENDING: _BACKLOGS.c.batches > 0,
}
"""Checked in this order; no one of them: IDLE."""
_STATE = sa.case(
    *((condition, state.value) for state, condition in _IS_IN_STATE.items()), else_=StreamState.IDLE.value
)
_URGENCY = sa.case(
    *((condition, BY_URGENCY.index(state)) for state, condition in _IS_IN_STATE.items()),
    else_=BY_URGENCY.index(StreamState.IDLE),
)
_KEYS = sa.select(streams.c.id, streams.c.query_id, streams.c.table_uri)
_FROM = streams.outerjoin(_BACKLOGS, _BACKLOGS.c.stream_id == streams.c.id)
_LONGEST_LAG = (_BACKLOGS.c.oldest.is_(None), _BACKLOGS.c.oldest)
_ORDER: dict[Sort, tuple[Any, ...]] = {
    Sort.STATE: (_URGENCY, *_LONGEST_LAG),
    Sort.LAG: _LONGEST_LAG,
    Sort.NAME: (streams.c.query_name == "", sa.func.lower(streams.c.query_name)),
    Sort.ROWS: (streams.c.committed_rows.desc(),),
}
_WITH_LETTERS = (
    sa.select(dead_letters.c.stream_id)
    .join(
        manifests,
        sa.and_(
            manifests.c.stream_id == dead_letters.c.stream_id,
            manifests.c.batch_id == dead_letters.c.batch_id,
        ),
    )
    .where(manifests.c.state == ManifestState.COMMITTED.value)
    .distinct()
)


def list_streams(
    connection: Connection, wanted: StreamFilter, sort: Sort, offset: int, limit: int
) -> StreamList:
    """Return a page of streams. Only its streams are read whole."""
    skipped = [one for one, batches in skipped_of_each(connection).items() if batches.unacknowledged]
    chosen = [*map(_has_word, wanted.text.split())]
    if wanted.kind:
        chosen.append(streams.c.kind == wanted.kind)
    if wanted.has_letters:
        chosen.append(streams.c.id.in_(_WITH_LETTERS))
    if wanted.has_skipped:
        chosen.append(streams.c.id.in_(skipped))
    sums = (
        sa.func.count(),
        *(
            sa.func.coalesce(sa.func.sum(column), 0)
            for column in (_BACKLOGS.c.batches, _BACKLOGS.c.rows, streams.c.committed_rows)
        ),
    )
    query = sa.select(_STATE, *sums).select_from(_FROM).where(*chosen).group_by(_STATE)
    counted = {StreamState(state): tuple(map(int, rest)) for state, *rest in connection.execute(query)}
    if wanted.state is not None:
        chosen.append(sa.literal(wanted.state.value) == _STATE)
    found = [one for state, one in counted.items() if wanted.state in (None, state)]
    page = _KEYS.select_from(_FROM).where(*chosen).order_by(*_ORDER[sort], streams.c.id)
    keys = [tuple(row) for row in connection.execute(page.offset(offset).limit(limit))]
    read = statuses(connection, streams.c.id.in_([one for one, *_ in keys])) if keys else []
    of_key = {one.key: one for one in read}
    return StreamList(
        [of_key[StreamKey(query_id, table_uri)] for _, query_id, table_uri in keys],
        sum(one[0] for one in found),
        {state: counted.get(state, (0,))[0] for state in BY_URGENCY},
        sum(one[1] for one in found),
        sum(one[2] for one in found),
        sum(one[3] for one in found),
        connection.scalars(sa.select(streams.c.kind).distinct().order_by(streams.c.kind)).all(),
        connection.scalar(sa.select(sa.func.count()).select_from(_WITH_LETTERS.subquery())) or 0,
        len(skipped),
    )


def _has_word(word: str) -> sa.ColumnElement[bool]:
    named = (streams.c.query_name, streams.c.table_uri, streams.c.query_id)
    return sa.or_(*(column.icontains(word, autoescape=True) for column in named))
