"""A request-based destination in a simulation: the product's own code for it, over a fake service.

Queries are decoupled: their tasks write to a row log in the object store, and delivery processes send. The
service takes each id once, as destinations do that deduplicate by id. Requests overtake each other, are
accepted in part, are lost, or arrive late.

A service with keys keeps the last row of each, as a database does. There no request arrives late: an older
row that comes after a newer one of its key would replace it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import cached_property, lru_cache, partial
from typing import Any

import pyarrow as pa
import pytest
from tests.simulation.lake import TableContents, WrittenIds
from tests.simulation.object_store import LocationFileSystem, ObjectStore
from tests.simulation.plan import EVENTS_OF_TARGETS, DeliveryPlan, Plan
from tests.simulation.refusals import Refusals
from tests.simulation.routed_rows import COLUMN
from tests.simulation.scheduler import Actor, Scheduler, UnreachableError, as_os_error

from penstock.committers.contract import (
    NO_LETTERS,
    AttemptId,
    Batch,
    DataFile,
    DeadLetters,
    Manifest,
    Mode,
    PlannedBatch,
    StreamKey,
    Token,
)
from penstock.committers.dead_letters import BadRows
from penstock.committers.deliveries.contract import Lease
from penstock.committers.errors import PenstockError, RetryableError
from penstock.committers.file_tables.files import TableFiles
from penstock.committers.progress import BatchInDelivery, Progress, ProgressStore
from penstock.committers.requests.committer import RequestCommitter
from penstock.committers.requests.content import RequestManifests, RequestPayload
from penstock.committers.requests.contract import Counters, RefusedEntry, RowPlace
from penstock.committers.row_log.cleanup import CleanableRowLogs
from penstock.committers.row_log.log import RowLog
from penstock.committers.row_log.names import RowLogName, row_log_path
from penstock.datasource.requests import sink as request_sink
from penstock.datasource.requests.options import RequestOptions
from penstock.datasource.requests.sink import RequestSink, RequestTarget, Route
from penstock.writers.requests.entry import Entry
from penstock.writers.requests.progress import Progress as Acknowledged
from penstock.writers.requests.row_ids import row_ids

KIND = "requests"
EVENTS = {
    *("append", "recover", "collect_garbage", "back_up_store", "deliver", "skip", "park", "abort"),
    *("rewind_checkpoint", "copy_checkpoint", "reset_checkpoint"),
}
"""No other engine rewrites what was sent. The token is in the store: whoever loses that, or puts an old one
back, has lost the token, too.
"""
SENT_TRIES_MAX = 4
ENTRIES_MAX = 3
"""Of one request."""
AHEAD_MAX = 3
"""So many entries a request may overtake."""


ROWS = pa.schema([("id", pa.int64()), ("key", pa.string())])
KEYS = 3
"""Of the rows of one source."""


def key_of(row_id: int) -> str:
    """Each source has keys of its own."""
    return f"{row_id // 1000}-{row_id % KEYS}"


def by_key(ids: Sequence[int], partitions: int) -> list[list[int]]:
    """The rows of a key in one partition, as a query has to arrange them."""
    return [[one for one in ids if one % KEYS % partitions == number] for number in range(partitions)]


class RequestSimLake(WrittenIds):
    """See `SimulatedLake`."""

    kind = KIND
    has_whole_history = False
    cannot = frozenset({"compact", "vacuum", "expire", "roll_back"})
    refusals = Refusals()
    is_keyed = False
    """Does it keep the last row of each key alone?"""
    is_routed = False
    """Do the rows of the query name it?"""

    def __init__(self, scheduler: Scheduler, *, is_remote: bool) -> None:
        self.objects = ObjectStore(scheduler, is_remote=is_remote)
        self.scheduler = scheduler
        self.table_uri = "https://service/rows"
        self.data_location = "s3://log"
        self.rows: dict[str, int] = {}
        """What the service has, by the id of the entry."""
        self.last: dict[str, int] = {}
        """What it has last accepted of each key."""
        self.problems: list[str] = []
        self.known: dict[Actor | None, Progress] = {}
        """What a process has last read or written of the progress."""
        self._progress_s = scheduler.rng.choice((0, 1, 10))
        self._tokens: dict[str, Token] = {}

    @staticmethod
    def plan(plan: Plan, scheduler: Scheduler) -> Plan:
        """Decoupled always: what a task sends itself is sent again by its replay, with other ids."""
        delivery = plan.delivery or DeliveryPlan.of(scheduler.rng)
        options = replace(delivery.options, compact_with="none")
        events = [name for name in plan.events if name in (*EVENTS, *EVENTS_OF_TARGETS)]
        if not plan.has_shared_store:  # a copy would take the token with it
            events = [name for name in events if name != "copy_checkpoint"]
        return replace(
            plan,
            delivery=replace(delivery, decoupled=1.0, options=options),
            events=tuple(events),
            event_count=plan.event_count if events else 0,
        )

    def share_row_log(self, other: RequestSimLake, table_uri: str) -> None:
        """Be another service that gets the rows of the same row log."""
        self.objects, self.data_location, self.table_uri = other.objects, other.data_location, table_uri

    # The product --------------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(request_sink, "RowLog", lambda *_: SimulatedRowLog(self))
            yield

    def open_table(self) -> SimulatedRequestTarget:
        return SimulatedRequestTarget(self, self._progress_s)

    def open_committer(self) -> RequestCommitter:
        """It does not send."""
        return RequestCommitter(KIND, self.table_uri)

    def cleanable_table(self, store: Any) -> CleanableRowLogs:
        keys = [key for key in store.stream_keys() if key.table_uri == self.table_uri]
        logs = {key.query_id: SimulatedRowLog(self) for key in keys}
        return CleanableRowLogs(self.table_uri, logs, store.progress)

    def maintain(self, store: Any, batch: Batch) -> None:
        """There is nothing to do."""

    def write(self, attempt: AttemptId, ids: Sequence[int]) -> tuple[DataFile, ...]:
        """One file for each task with rows."""
        if not ids:
            return ()
        path = row_log_path(attempt)
        self.objects.put(f"{self.data_location}/{path}", tuple(ids), size_bytes=len(ids))
        return (DataFile(path, len(ids), len(ids)),)

    def paths_of(self, manifest: Manifest) -> Iterator[str]:
        return (file.path for file in RequestManifests(KIND).files(manifest))

    parse_file_name = staticmethod(RowLogName.parse)

    # The service --------------------------------------------------------------------------------------

    def take(self, entries: Sequence[Entry[int]]) -> list[bool]:
        """What the service does with a request: it answers some of the entries, and accepts each id once.

        Returns:
            for each entry, is it acknowledged? One that is refused for good is, too.
        """
        acknowledged = []
        for entry in entries:
            is_done = self.scheduler.rng.random() < 0.8
            is_accepted = is_done and self.refusals.accepts(entry.payload)
            if is_accepted and entry.id not in self.rows:
                self.rows[entry.id] = self.last[key_of(entry.payload)] = entry.payload
            if is_accepted and self.rows[entry.id] != entry.payload:
                self.problems.append(f"the entry {entry.id} was sent with two rows")
            acknowledged.append(is_done)
        return acknowledged

    def note_token(self, stream: StreamKey, progress: Progress) -> None:
        if progress.token is not None:
            self._tokens[stream.query_id] = progress.token

    # Other writers ------------------------------------------------------------------------------------

    exists = True

    def append(self, row_id: int) -> None:
        self.rows[f"foreign{row_id}"] = row_id

    def versions(self) -> Sequence[int]:
        return ()

    def _is_not_there(self, *_: Any) -> None:
        raise NotImplementedError("no other engine writes to the destination")

    compact = vacuum = expire = roll_back = _is_not_there

    def with_replaced(self, ids: set[int]) -> set[int]:
        """These and, of a service with keys, the rows that they replace: the earlier ones of their keys."""
        if not self.is_keyed:
            return ids
        last = {key_of(row_id): row_id for row_id in sorted(ids)}
        logged = {row_id for stored in self.objects.ever.values() for row_id in stored.content}
        return ids | {row_id for row_id in logged if row_id <= last.get(key_of(row_id), -1)}

    # The end ------------------------------------------------------------------------------------------

    def contents(self) -> TableContents:
        rows = Counter(self.rows.values())
        if self.is_keyed:
            foreign = {row_id for row_id in rows if row_id < 0}
            rows = Counter(foreign | self.with_replaced(set(self.last.values())))
        return TableContents(
            rows=rows,
            added=Counter(),
            missing=(),
            orphans=[path for path in self.objects.objects if path.startswith(self.data_location)],
            tokens=[(query_id, token.batch_id, 0) for query_id, token in self._tokens.items()],
            digests={(query_id, token.batch_id): token.digest for query_id, token in self._tokens.items()},
            problems=self.problems,
        )


class SimulatedRequestTarget(RequestTarget):
    """The product's target, with the clock of the simulation."""

    def __init__(self, lake: RequestSimLake, progress_s: int) -> None:
        bad_rows = BadRows.FAIL if lake.refusals.shift is None else BadRows.DEAD_LETTER
        options = RequestOptions(
            is_decoupled=True,
            row_log=lake.data_location,
            progress_s=progress_s,
            bad_rows=bad_rows,
            keys=("key",) if lake.is_keyed else (),
            route_by=(COLUMN,) if lake.is_routed else None,
        )
        super().__init__(RequestSink(KIND, lake.table_uri, options, SimulatedRequests(lake)))
        self._lake = lake
        self._clock = lambda: lake.scheduler.now

    def plan_batch(self, rows: pa.Schema, mode: Mode, batch_id: int) -> PlannedBatch[RequestPayload, Route]:
        return super().plan_batch(ROWS, mode, batch_id)

    def with_progress(self, progress: ProgressStore) -> SimulatedRequestTarget:
        return super().with_progress(WatchedProgress(progress, self._lake))


class WatchedProgress:
    """See `ProgressStore`. Remembers what the process knows by it."""

    def __init__(self, store: ProgressStore, lake: RequestSimLake) -> None:
        self._store = store
        self._lake = lake

    def read(self, stream: StreamKey) -> Progress:
        return self._noted(stream, self._store.read(stream))

    def write(
        self,
        stream: StreamKey,
        expected: Progress,
        token: Token | None,
        in_delivery: BatchInDelivery | None = None,
        dead_letters: DeadLetters = NO_LETTERS,
        *,
        lease: Lease | None = None,
    ) -> Progress:
        written = self._store.write(stream, expected, token, in_delivery, dead_letters, lease=lease)
        return self._noted(stream, written)

    def dead_letters(self, stream: StreamKey, batch_id: int) -> int:
        return self._store.dead_letters(stream, batch_id)

    def needed_by_others(self, stream: StreamKey, location: str, batch_ids: Collection[int]) -> set[int]:
        return self._store.needed_by_others(stream, location, batch_ids)

    def settled_by_others(self, stream: StreamKey, location: str) -> int | None:
        return self._store.settled_by_others(stream, location)

    def _noted(self, stream: StreamKey, progress: Progress) -> Progress:
        self._lake.known[self._lake.scheduler.current] = progress
        self._lake.note_token(stream, progress)
        return progress


class SimulatedRequests:
    """See `Requests`. A row is its id."""

    def __init__(self, lake: RequestSimLake) -> None:
        self._lake = lake

    def check_schema(self, rows: pa.Schema) -> None:
        """All are accepted."""

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return self.check_schema

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[int]]:
        self._check_not_recorded(place)
        self._lake.refusals.check(rows)
        ids = row_ids(rows, place, None)
        return [
            Entry(row, 1, row_id, place.position + number)
            for number, (row, row_id) in enumerate(zip(rows.column(0).to_pylist(), ids, strict=True))
        ]

    def open_writer(self, on_acknowledged: Callable[[], None] = lambda: None) -> SimulatedWriter:
        return SimulatedWriter(self._lake, on_acknowledged)

    def _check_not_recorded(self, place: RowPlace) -> None:
        """What the process knows to be recorded is not sent again."""
        known = self._lake.known[self._lake.scheduler.current]
        if known.token is not None and place.batch_id <= known.token.batch_id:
            self._lake.problems.append(f"batch {place.batch_id} is sent again, after it was recorded")


class SimulatedWriter:
    """See `EntryWriter`. Requests are sent one after the other, and not in the order of the entries."""

    def __init__(self, lake: RequestSimLake, on_acknowledged: Callable[[], None]) -> None:
        self.counters = Counters()
        self._lake = lake
        self._on_acknowledged = on_acknowledged
        self._acknowledged = Acknowledged()
        self._check: Callable[[], None] = lambda: None
        self._waiting: list[Entry[int]] = []
        self._refused: list[RefusedEntry] = []

    @property
    def acknowledged_up_to(self) -> int | None:
        return self._acknowledged.done_up_to

    def check_with(self, check: Callable[[], None]) -> None:
        self._check = check

    def write(self, entries: Sequence[Entry[int]]) -> None:
        self._check()
        self._acknowledged.add([entry.position for entry in entries])
        self._waiting += entries
        while len(self._waiting) > ENTRIES_MAX + AHEAD_MAX:
            self._send()

    def flush(self) -> None:
        while self._waiting:
            self._send()

    def take_refused(self) -> Sequence[RefusedEntry]:
        refused, self._refused = self._refused, []
        return refused

    def stop(self) -> None:
        """What is in flight may still be answered."""
        if self._waiting and self._lake.scheduler.rng.random() < 0.5:
            with suppress(PenstockError):
                self._send()

    def abort(self) -> None:
        self._waiting.clear()

    def _send(self) -> None:
        rng, ready = self._lake.scheduler.rng, self._ready()
        first = rng.randint(0, min(AHEAD_MAX, len(ready) - 1))
        taken = ready[first : first + rng.randint(1, ENTRIES_MAX)]
        accepted = self._answer(taken)
        done = [entry for entry, is_accepted in zip(taken, accepted, strict=True) if is_accepted]
        self._waiting = [entry for entry in self._waiting if entry not in done]
        at = datetime.fromtimestamp(self._lake.scheduler.now, timezone.utc)
        self._refused += [
            RefusedEntry(entry.position, entry.id, "422", "not this one", at)
            for entry in done
            if not self._lake.refusals.accepts(entry.payload)
        ]
        if done:
            self._on_acknowledged()  # if that fails, they do not count as acknowledged
        self._acknowledged.finish([entry.position for entry in done])

    def _ready(self) -> list[Entry[int]]:
        """Entries with a key wait for those of the same key."""
        if not self._lake.is_keyed:
            return self._waiting
        return list({entry.key: entry for entry in reversed(self._waiting)}.values())[::-1]

    def _answer(self, entries: Sequence[Entry[int]]) -> list[bool]:
        scheduler, about = self._lake.scheduler, ", ".join(entry.id for entry in entries)
        for _ in range(SENT_TRIES_MAX):
            try:
                act, is_keyed = partial(self._lake.take, entries), self._lake.is_keyed
                return scheduler.request("send", act, about=about, remote=not is_keyed)
            except (UnreachableError, OSError):
                scheduler.sleep(1.0)
        raise RetryableError(f"the service does not answer: {about}")


class SimulatedRowLog(RowLog):
    """The product's, whose files are in the object store of the simulation."""

    def __init__(self, lake: RequestSimLake) -> None:
        super().__init__(lake.data_location, {})
        self._objects = lake.objects

    @cached_property
    def files(self) -> TableFiles:
        return TableFiles(self.location, "the options", self._filesystem)

    def _filesystem(self) -> Any:
        return LogFileSystem(self._objects, self.location)


class LogFileSystem(LocationFileSystem):
    """With files that can be read: their content is the ids of their rows."""

    def open_input_file(self, path: str) -> pa.BufferReader:
        with as_os_error():
            ids = self._store.get(self._root + path).content
        return pa.BufferReader(_as_ipc(ids))


@lru_cache(maxsize=100)
def _as_ipc(ids: tuple[int, ...]) -> pa.Buffer:
    rows = pa.record_batch([pa.array(ids, pa.int64()), pa.array(map(key_of, ids))], schema=ROWS)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()
