"""`penstock dead-letters`: what a stream's dead letters are, and how to send them again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from ..committers.contract import Batch, ManifestState, StreamKey
from ..committers.dead_letters import SKIPPING, joined, resent_stream, row_in, skipped_stream
from ..committers.errors import (
    ConfigurationError,
    PenstockError,
    SchemaMismatchError,
    TableNotSupportedError,
    shown,
)
from ..committers.file_tables.evolution import SchemaEvolution
from ..committers.store.dead_letters import Resend
from ..committers.texts.safe_text import get_logger
from ..datasource.dead_letters import LETTERS, committed_up_to, letters_batch, write_rows
from ..datasource.destinations import access_of, stored_table
from ..datasource.settings import DEAD_LETTERS, settings_of
from ..datasource.sink import check_same_table
from ..datasource.stored.stored_table import Readable
from ..delivery.stream_settings import StreamSettings, access_to_letters, build_sink, find_letters
from .admin import last_in_table
from .leases import held_lease

if TYPE_CHECKING:
    import pyarrow as pa

    from ..committers.store.dead_letters import LetterCount
    from ..committers.store.sql import SqlManifestStore
    from ..committers.store.status import StreamStatus
    from ..datasource.sink import Sink
    from ..datasource.stored.table_access import TableAccess

logger = get_logger(__name__)

_FOR_LETTERS = ("badRows", "deadLetter", "deadLetterMax", "delivery", "eventTime")
"""Options of a query that do not apply to rows that are sent again."""
_EVOLUTION = "schemaEvolution"


@dataclass(frozen=True, slots=True)
class Resends:
    """The dead letters of a stream that its destination got again."""

    number: int
    """Batch id of the last resend in the destination; -1 if there is none."""
    names: frozenset[str]
    """See `names_of`."""
    is_known: bool
    """False if the store was lost: then it does not know all of them."""

    @classmethod
    def of(cls, store: SqlManifestStore, stream: StreamKey, number: int) -> Resends:
        """
        Args:
            number: of the last one in the destination
        """
        known = [one for one in store.dead_letters.resends(stream) if one.number <= number]
        record = store.record(resent_stream(stream), number)
        is_last = record is None or (bool(known) and record.batch.digest == known[-1].digest)
        is_known = [one.number for one in known] == list(range(number + 1)) and is_last
        return cls(number, frozenset[str]().union(*(one.letters for one in known)), is_known)

    def check_known(self) -> None:
        """
        Raises:
            ConfigurationError: rows could be sent twice.
        """
        if not self.is_known:
            raise ConfigurationError(
                f"The destination got dead letters again {self.number + 1} times, and the manifest store "
                "does not know all of them: it was lost or replaced. Nothing was sent. Compare the "
                "dead-letter table with the destination, and send the missing rows one by one: "
                "penstock dead-letters resend STREAM --id BATCH/LETTER."
            )


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which dead letters a command is about. Without values, all."""

    ids: Sequence[str] = ()
    """See `names_of`."""
    codes: Sequence[str] = ()
    since: datetime | None = None
    until: datetime | None = None
    batch: int | None = None
    up_to: int | None = None
    """Batches up to this one."""

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are wanted, of those of a dead-letter table."""
        names = names_of(rows)
        columns = rows.select(["batch_id", "code", "refused_at"]).to_pylist()
        return _filtered(rows, (self._has(name, **row) for name, row in zip(names, columns, strict=True)))

    def check_ids(self, tables: Iterable[pa.Table]) -> None:
        """
        Raises:
            ConfigurationError: no table has a row with one of the ids.
        """
        unknown = set(self.ids).difference(*map(names_of, tables))
        if unknown:
            raise ConfigurationError(
                f"The stream has no dead letter {shown(min(unknown))}. penstock dead-letters show STREAM "
                "lists their ids, in the form BATCH/LETTER."
            )

    def _has(self, name: str, batch_id: int, code: str, refused_at: datetime) -> bool:
        return (
            (not self.ids or name in self.ids)
            and (not self.codes or code in self.codes)
            and (self.since is None or refused_at >= self.since)
            and (self.until is None or refused_at < self.until)
            and (self.batch is None or batch_id == self.batch)
            and (self.up_to is None or batch_id <= self.up_to)
        )


def names_of(rows: pa.Table) -> list[str]:
    """Return the id of each dead letter in its stream: `<batch id>/<letter id>`."""
    columns = rows["batch_id"].to_pylist(), rows["letter_id"].to_pylist()
    return [f"{batch_id}/{letter_id}" for batch_id, letter_id in zip(*columns, strict=True)]


def _filtered(rows: pa.Table, is_wanted: Iterable[bool]) -> pa.Table:
    import pyarrow as pa

    return rows.filter(pa.array(list(is_wanted), pa.bool_()))


def named_rows(rows: pa.Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each dead letter with its name."""
    return zip(names_of(rows), rows.to_pylist(), strict=True)


@dataclass(frozen=True, slots=True)
class StreamLetters:
    """The dead letters of one stream."""

    stream: StreamStatus
    waiting: Sequence[LetterCount]
    """Dead letters in the store."""
    table_uri: str
    """Address of the dead-letter destination; empty if the query has none."""
    skipped_uris: Sequence[str]
    """Addresses of other tables, in which `penstock skip` has saved rows."""
    delivered: pa.Table | None
    """Rows of the dead-letter table; None if it cannot be read here."""
    problem: str
    """Why the dead-letter table cannot be read."""
    resends: Resends
    """Those that were sent again."""


def has_letters(store: SqlManifestStore, stream: StreamStatus) -> bool:
    """Return True if a stream has a dead-letter destination, dead letters in the store, or skipped rows."""
    letters = StreamSettings.parse(stream.settings).dead_letters
    return bool(letters or store.dead_letters.counts(stream.key) or _letter_streams(store, stream, None))


def load(
    store: SqlManifestStore, stream: StreamStatus, access: TableAccess, *, only_table: bool = False
) -> StreamLetters:
    """Read the dead letters of a stream.

    Args:
        only_table: raise an error if the dead-letter table cannot be read

    Raises:
        PenstockError: with `only_table`, the query has no dead-letter table, or one that cannot be read.
    """
    import pyarrow as pa

    settings = StreamSettings.parse(stream.settings)
    found = find_letters(store, stream, settings)
    delivered, problem = None, "the query has no dead-letter destination"
    streams = _letter_streams(store, stream, found)
    for letters in streams:
        try:
            rows = _read(letters, stream, access)
        except TableNotSupportedError as error:
            problem = str(error)
        except PenstockError as error:
            if only_table:
                raise
            problem = str(error)
        else:
            delivered = rows if delivered is None else _sorted(pa.concat_tables([delivered, rows]))
            problem = ""
    if only_table and delivered is None:
        raise ConfigurationError(f"The dead letters of {stream.key} cannot be read: {problem}.")
    if delivered is not None:
        delivered = _without_others(delivered, store, stream)
    number = -1
    try:
        number = _last_resend(store, stream, access)
    except PenstockError as error:
        problem = f"it is not known which were sent again: {error}"
    return StreamLetters(
        stream,
        store.dead_letters.counts(stream.key),
        settings.dead_letters,
        [one.key.table_uri for one in streams if one.key.table_uri != settings.dead_letters],
        delivered,
        problem,
        Resends.of(store, stream.key, number),
    )


def _read(letters: StreamStatus, stream: StreamStatus, access: TableAccess) -> pa.Table:
    """Return the dead letters of a stream in one dead-letter table.

    Raises:
        TableNotSupportedError: Penstock does not read such tables.
        PenstockError: it cannot be read now.
    """
    table = stored_table(letters, access_to_letters(letters, stream, access))
    if not isinstance(table, Readable):
        raise TableNotSupportedError(
            f"Penstock does not read rows from penstock.{letters.kind}. Read {letters.key.table_uri} with a "
            "program that does: its column content has each row as an Arrow IPC stream. Or give the query a "
            "dead-letter table in Delta, Iceberg, DuckLake, Lance, Parquet files or a database"
        )
    return _of_stream(table.read("query_id", stream.key.query_id), stream.key)


def _last_resend(store: SqlManifestStore, stream: StreamStatus, access: TableAccess) -> int:
    """Return the batch id of the last resend in the destination; -1 if the store knows of none.

    Raises:
        PenstockError: the destination cannot be asked now.
    """
    if not store.dead_letters.resends(stream.key):
        return -1
    own = replace(access_of(stream, access), streams={})  # the stream of resends has another id
    return last_in_table(store, replace(stream, key=resent_stream(stream.key)), own)


def _letter_streams(
    store: SqlManifestStore, stream: StreamStatus, letters: StreamStatus | None
) -> list[StreamStatus]:
    """Return a stream for each table with dead letters of this one: those of the query, and of `skip`."""
    tables = {} if letters is None else {letters.key.table_uri: letters}
    for one in store.streams():
        if one.key == skipped_stream(stream.key, one.key.table_uri):
            tables.setdefault(one.key.table_uri, one)
    return list(tables.values())


def _without_others(rows: pa.Table, store: SqlManifestStore, stream: StreamStatus) -> pa.Table:
    """Leave out rows that `skip` saved although the batch was not skipped, and a second copy of a row.

    A command that died before it skipped the batch has left them.
    """
    skipped = {one.batch_id for one in store.deliveries.operator_actions(stream.key) if one.what == "skip"}
    seen: set[str] = set()
    is_kept = []
    for name in names_of(rows):
        batch_id, _, letter_id = name.partition("/")
        is_saved = letter_id.startswith(f"{SKIPPING}-")
        is_kept.append(name not in seen and (not is_saved or int(batch_id) in skipped))
        seen.add(name)
    return _filtered(rows, is_kept)


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("batch_id", "ascending"), ("letter_id", "ascending")])


def _of_stream(rows: pa.Table | None, stream: StreamKey) -> pa.Table:
    """Return the rows of a stream, ordered by batch. Other streams may use the same dead-letter table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if rows is None:
        return LETTERS.empty_table()
    rows = rows.select(LETTERS.names).cast(LETTERS)
    is_own = pc.equal(rows["table_uri"], pa.scalar(stream.table_uri))
    return _sorted(rows.filter(is_own))


def waiting_rows(store: SqlManifestStore, stream: StreamKey) -> pa.Table:
    """Return the dead letters in the store as rows of a dead-letter table."""
    import pyarrow as pa

    waiting = store.dead_letters.waiting(stream)
    batches = [letters_batch(batch, some) for batch in waiting for some in store.dead_letters.of_batch(batch)]
    return pa.Table.from_batches(batches, schema=LETTERS)


def to_send(found: StreamLetters, wanted: Wanted) -> pa.Table:
    """Return the wanted dead letters that were not sent again yet, except for damaged ones.

    Raises:
        ConfigurationError: one of the ids is unknown, or the store does not know which were sent.
    """
    assert found.delivered is not None
    wanted.check_ids([found.delivered])
    rows = wanted.of(found.delivered)
    if not wanted.ids:
        found.resends.check_known()
    return _undamaged(_filtered(rows, (name not in found.resends.names for name in names_of(rows))))


def _undamaged(letters: pa.Table) -> pa.Table:
    """Return the dead letters whose content can be decoded. Log a warning for each other one."""
    damaged = set()
    for name, content in zip(names_of(letters), letters["content"].to_pylist(), strict=True):
        try:
            row_in(content)
        except ValueError as error:
            damaged.add(name)
            logger.warning(
                "The dead letter %s is not sent: its column content in the dead-letter table does not have "
                "the row that Penstock stored (%s). Its column row shows the values.",
                name,
                error,
            )
    return _filtered(letters, (name not in damaged for name in names_of(letters)))


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
    names = names_of(letters)
    rows = joined([row_in(content) for content in letters["content"].to_pylist()])
    batch = Batch(key, found.resends.number + 1, hashlib.sha256("\n".join(names).encode()).hexdigest())
    store.dead_letters.put_resend(stream.key, Resend(batch.batch_id, batch.digest, frozenset(names)))
    try:
        return write_rows(store, sink, batch, rows.to_batches, schema=rows.schema)
    except SchemaMismatchError as error:
        _give_up(store, key, error)
        raise SchemaMismatchError(
            f"{error}\nNone of these rows was sent; they stay in the dead-letter table. Select those that "
            "the destination accepts: --id, --code, --batch, --up-to, --since, --until."
        ) from error


@contextmanager
def resending(store: SqlManifestStore, stream: StreamStatus, access: TableAccess) -> Iterator[Resends]:
    """Hold the lease of the stream's resends, and finish what an earlier call has begun."""
    key, sink = resent_stream(stream.key), sink_of(stream, access)
    name = f"sent again: {stream.query_name}" if stream.query_name else "sent again"
    store.register_stream(key, stream.kind, name, settings=settings_of(sink.options, delivery=DEAD_LETTERS))
    with held_lease(store, key):
        try:
            number = committed_up_to(store, sink, key)
        except SchemaMismatchError as error:  # the table no longer accepts what an earlier call has prepared
            _give_up(store, key, error)
            number = committed_up_to(store, sink, key)
        yield Resends.of(store, stream.key, number)


def _give_up(store: SqlManifestStore, resends: StreamKey, refusal: SchemaMismatchError) -> None:
    """Abort a resend that the destination has refused, so that the next one may send other rows."""
    for record in store.pending(resends):
        store.finish(record.batch, ManifestState.ABORTED, reason=str(refusal), expected=record)


def sink_of(stream: StreamStatus, access: TableAccess) -> Sink[Any, Any]:
    """Return the destination of a stream, coupled and without bad rows. A row that still does not fit the
    table is an error, and columns without a value that the table does not have are none.

    Raises:
        ConfigurationError: the store does not know how to open it.
    """
    settings = StreamSettings.parse(stream.settings)
    options = {key: value for key, value in settings.options.items() if key not in _FOR_LETTERS}
    quarantine = SchemaEvolution.QUARANTINE
    is_quarantined = options.get(_EVOLUTION, "").strip().lower() == quarantine.value
    if is_quarantined:
        del options[_EVOLUTION]
    coupled = StreamSettings("coupled", settings.checkpoint, options)
    sink: Any = build_sink(stream, coupled, access)
    if is_quarantined:
        sink = replace(sink, options=replace(sink.options, schema_evolution=quarantine))
    return cast("Sink[Any, Any]", sink)
