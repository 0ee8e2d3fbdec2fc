"""`penstock dead-letters`: what a stream's dead letters are, and how to send them again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..committers.contract import Batch, DeadLetter, StreamKey
from ..committers.dead_letters import resent_stream, rows_of
from ..committers.errors import ConfigurationError
from ..datasource.dead_letters import LETTERS, committed_up_to, letters_batch, write_rows
from ..datasource.destinations import Readable, open_committer, stored_table
from ..datasource.settings import DEAD_LETTERS, settings_of
from ..datasource.sink import check_same_table
from ..delivery.stream_settings import StreamSettings, access_to_letters, build_sink, find_letters

if TYPE_CHECKING:
    import pyarrow as pa

    from ..committers.store.dead_letters import LetterCount
    from ..committers.store.sql import SqlManifestStore, StreamStatus
    from ..datasource.sink import Sink
    from ..datasource.table_access import TableAccess

_FOR_LETTERS = ("badRows", "deadLetter", "deadLetterMax", "delivery", "eventTime")
"""Options of a query that do not apply to rows that are sent again."""


@dataclass(frozen=True, slots=True)
class StreamLetters:
    """The dead letters of one stream."""

    stream: StreamStatus
    waiting: Sequence[LetterCount]
    """Dead letters in the store."""
    table_uri: str
    """Address of the dead-letter destination; empty if the query has none."""
    delivered: pa.Table | None
    """Rows of the dead-letter table; None if it cannot be read here."""
    problem: str
    """Why the dead-letter table cannot be read."""
    sent_up_to: int
    """Dead letters of batches up to this one were sent again; -1 if none."""

    @property
    def waiting_count(self) -> int:
        return sum(count.letters for count in self.waiting)


def load(
    store: SqlManifestStore, stream: StreamStatus, access: TableAccess, *, only_table: bool = False
) -> StreamLetters:
    """Read the dead letters of a stream.

    Args:
        only_table: raise an error if the dead-letter table cannot be read

    Raises:
        ConfigurationError: with `only_table`, the query has no dead-letter table, or one that Penstock cannot
            read.
        RetryableError: a table cannot be read now.
    """
    settings = StreamSettings.parse(stream.settings)
    letters = find_letters(store, stream, settings)
    delivered, problem = None, "the query has no dead-letter destination"
    if letters is not None:
        table = stored_table(letters, access_to_letters(letters, stream, access))
        problem = f"Penstock does not read rows from penstock.{letters.kind}"
        if isinstance(table, Readable):
            rows = table.read("query_id", stream.key.query_id)
            delivered, problem = _of_stream(rows, stream.key), ""
    if only_table and delivered is None:
        raise ConfigurationError(f"The dead letters of {stream.key} cannot be read: {problem}.")
    token = open_committer(stream, access, store).token(resent_stream(stream.key).query_id)
    return StreamLetters(
        stream,
        store.dead_letters.counts(stream.key),
        settings.dead_letters,
        delivered,
        problem,
        -1 if token is None else token.batch_id,
    )


def _of_stream(rows: pa.Table | None, stream: StreamKey) -> pa.Table:
    """Return the rows of a stream, ordered by batch. Other streams may use the same dead-letter table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if rows is None:
        return LETTERS.empty_table()
    rows = rows.select(LETTERS.names).cast(LETTERS)
    is_own = pc.equal(rows["table_uri"], pa.scalar(stream.table_uri))
    return rows.filter(is_own).sort_by([("batch_id", "ascending"), ("letter_id", "ascending")])


def waiting_rows(store: SqlManifestStore, stream: StreamKey) -> Iterator[Mapping[str, Any]]:
    """Yield the dead letters in the store as rows of a dead-letter table."""
    for batch in store.dead_letters.waiting(stream):
        for letters in store.dead_letters.of_batch(batch):
            yield from _rows(batch, letters)


def _rows(batch: Batch, letters: Sequence[DeadLetter]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = letters_batch(batch, letters).to_pylist()
    return rows


def to_send(found: StreamLetters, up_to: int | None) -> pa.Table:
    """Return the dead letters that were not sent again yet.

    Args:
        up_to: leave out those of later batches
    """
    import pyarrow.compute as pc

    rows = found.delivered
    assert rows is not None
    rows = rows.filter(pc.greater(rows["batch_id"], found.sent_up_to))
    return rows if up_to is None else rows.filter(pc.less_equal(rows["batch_id"], up_to))


def send_again(store: SqlManifestStore, found: StreamLetters, letters: pa.Table, access: TableAccess) -> bool:
    """Send dead letters to the destination of their stream, in one batch with its own token.

    Returns False if the destination has them already.

    Raises:
        PenstockError: the destination refuses a row or does not answer. A table has none of the rows then. A
            request-based destination may have some, which are sent again the next time.
    """
    stream = found.stream
    key, sink = resent_stream(stream.key), sink_of(stream, access)
    check_same_table(sink.open_table(), stream.key, store.written_table(stream.key))
    name = f"sent again: {stream.query_name}" if stream.query_name else "sent again"
    store.register_stream(key, stream.kind, name, settings=settings_of(sink.options, delivery=DEAD_LETTERS))
    last = max(letters["batch_id"].to_pylist())
    names = [
        f"{row['batch_id']} {row['letter_id']}"
        for row in letters.select(["batch_id", "letter_id"]).to_pylist()
    ]
    batch = Batch(key, last, hashlib.sha256("\n".join(names).encode()).hexdigest())
    rows = rows_of(letters["content"].to_pylist())
    return write_rows(store, sink, batch, rows.to_batches, schema=rows.schema)


def finish_earlier(store: SqlManifestStore, stream: StreamStatus, access: TableAccess) -> int:
    """Finish what an earlier call has begun. Return the last batch whose dead letters were sent again."""
    return committed_up_to(store, sink_of(stream, access), resent_stream(stream.key))


def sink_of(stream: StreamStatus, access: TableAccess) -> Sink[Any, Any]:
    """Return the destination of a stream, coupled and without bad rows.

    Raises:
        ConfigurationError: the store does not know how to open it.
    """
    settings = StreamSettings.parse(stream.settings)
    options = {key: value for key, value in settings.options.items() if key not in _FOR_LETTERS}
    sink: Any = build_sink(stream, StreamSettings("coupled", settings.checkpoint, options), access)
    own: Sink[Any, Any] = sink
    return own
