"""Random calls of several processes to a manifest store: the simulation's must answer as the real one does.

Then what holds of histories with the one holds with the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.simulation.memory_store import MemoryStore

from penstock.committers.contract import (
    Batch,
    DeadLetter,
    Manifest,
    ManifestRecord,
    ManifestState,
    StreamKey,
    Token,
)
from penstock.committers.deliveries.contract import Delivery, DeliveryState, Lease
from penstock.committers.errors import PenstockError
from penstock.committers.progress import BatchInDelivery, Progress
from penstock.committers.store.expiries import Expiry
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory
from penstock.committers.store.tables import metadata

NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)
STREAM = StreamKey("q1", "/lake/a")
STREAMS = (STREAM, StreamKey("q1", "/lake/b"), StreamKey("q2", "/lake/a"))
Call = tuple[Any, ...]
"""The name of a method of `Processes`, of the store or of its deliveries, and its arguments."""


class NothingYetError(Exception):
    """A call would need a lease, a record or a delivery that its process does not have."""


class _Remembered(dict[Any, Any]):
    def __missing__(self, key: object) -> object:
        raise NothingYetError(key)


class Processes:
    """A store, and what its processes remember: leases, plans, deliveries, and records as read."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self._leases: dict[str, Lease] = _Remembered()
        self._deliveries: dict[int, Delivery] = _Remembered()
        self._records: dict[int, ManifestRecord] = _Remembered()
        self._progress: dict[str, Progress] = {}
        self._plan: list[Batch] = []

    def answer(self, call: Call) -> object:
        """What the call returns, or the class of its error."""
        name, *arguments = call
        places = (self, self.store, self.store.deliveries, self.store.expiries)
        try:
            return next(getattr(one, name) for one in places if hasattr(one, name))(*arguments)
        except (PenstockError, NothingYetError) as error:
            return type(error)

    # Batches

    def prepare(
        self, batch: Batch, content: bytes, run: str, follows: str | None = None, letters: int = 0
    ) -> object:
        before = follows and Batch(batch.stream, batch.batch_id - 1, follows)
        return self.store.prepare(written(batch, content, letters), run, follows=before or None)

    def replace(self, batch: Batch, run: str, letters: int) -> object:
        record = self._records[batch.batch_id]
        return self.store.prepare(written(batch, b"other", letters), run, replacing=record)

    def look(self, batch_id: int) -> object:
        record = self.store.record(STREAM, batch_id)
        self._records.update({} if record is None else {batch_id: record})
        return record

    def give_up(self, batch_id: int) -> object:
        return self.store.abort_from(self._records[batch_id], "given up for its replay")

    def abort_record(self, batch_id: int) -> object:
        record = self._records[batch_id]
        return self.store.finish(record.batch, ManifestState.ABORTED, reason="gone", expected=record)

    def finish(self, batch: Batch, state: ManifestState, version: int | None, letters: int = 0) -> object:
        refused = {batch.batch_id: refused_rows("commit", letters)} if letters else {}
        return self.store.finish(batch, state, table_version=version, reason="why", dead_letters=refused)

    # Deliveries

    def acquire(self, holder: str, seconds: float) -> object:
        lease = self.store.deliveries.acquire(STREAM, holder, seconds)
        self._leases.update({} if lease is None else {holder: lease})
        return lease

    def renew(self, holder: str) -> object:
        return self.store.deliveries.renew(self._leases[holder], 60.0)

    def release(self, holder: str) -> object:
        return self.store.deliveries.release(self._leases[holder])

    def set_state(self, holder: str, state: DeliveryState) -> object:
        return self.store.deliveries.set_state(self._leases[holder], state)

    def plan_delivery(self) -> object:
        self._plan = [record.batch for record in self.store.deliveries.deliverable(STREAM)]
        return self._plan

    def prepare_delivery(self, holder: str, first: int, count: int, is_compacted: bool) -> object:
        """Of what was planned, from there on."""
        merged = tuple(self._plan[first : first + count])
        if not merged:
            raise NothingYetError
        manifest = Manifest(merged[-1], "delta", 1, b"merged", 5, 6, 7, is_empty=False, merged=merged)
        lease = self._leases[holder]
        delivery: Delivery = self.store.deliveries.prepare(lease, manifest, "age", is_compacted=is_compacted)
        self._deliveries[len(self._deliveries)] = delivery
        return delivery

    def finish_delivery(self, number: int, version: int | None, letters: int) -> object:
        delivery = self._deliveries[number]
        refused = {one.batch_id: refused_rows("commit", letters) for one in delivery.manifest.batches}
        return self.store.deliveries.finish(delivery, version, refused if letters else {})

    def abandon(self, holder: str, number: int) -> object:
        return self.store.deliveries.abandon(self._leases[holder], self._deliveries[number], "why")

    def read_progress(self, holder: str) -> object:
        self._progress[holder] = self.store.progress.read(STREAM)
        return self._progress[holder]

    def write_progress(
        self, holder: str, token: Token | None, half: BatchInDelivery | None, has_lease: bool, letters: int
    ) -> object:
        """In place of what the process has last seen."""
        seen, lease = self._progress.get(holder, Progress()), self._leases[holder] if has_lease else None
        refused = {half.batch_id: refused_rows("send", letters)} if half is not None and letters else {}
        written = self.store.progress.write(STREAM, seen, token, half, refused, lease=lease)
        self._progress[holder] = written
        return written, [self.store.progress.dead_letters(STREAM, number) for number in range(3)]

    # Operators

    def skip(self, batch_id: int, digest: str | None) -> object:
        record = digest and Batch(STREAM, batch_id, digest)
        return self.store.deliveries.skip(STREAM, batch_id, "me", "why", expected=record or None)

    def abort_pending(self, after: int, digest: str | None) -> object:
        record = digest and [Batch(STREAM, after + 1, digest)]
        return self.store.deliveries.abort_pending(STREAM, after, "me", "why", expected=record or None)


def written(batch: Batch, content: bytes, letters: int = 0) -> Manifest:
    refused = refused_rows("write", letters)
    return Manifest(batch, "delta", 1, content, 2, 3, 4, is_empty=False, dead_letters=refused)


def refused_rows(stage: str, letters: int) -> tuple[DeadLetter, ...]:
    """Number 0 or 1, or both: of the same place, whichever attempt has found them."""
    return tuple(
        [
            DeadLetter(f"{stage}-{number}", "", "does_not_fit", f"{letters}", NOW, b"row")
            for number in range(2)
            if letters & (number + 1)
        ]
    )


# Which calls ----------------------------------------------------------------------------------------------

small, numbers = st.integers(0, 2), st.sampled_from([0, 0, 0, 1, 2])
batch_ids, versions = st.integers(0, 4), st.sampled_from([None, 7])
runs, holders = st.sampled_from(["r1", "r1", "r2"]), st.sampled_from(["d1", "d2"])
digests = st.sampled_from(["d0", "d0", "d0", "d1"])
batches = st.builds(Batch, st.just(STREAM), batch_ids, digests)
ends = st.sampled_from([ManifestState.COMMITTED, ManifestState.ABORTED])
states = st.builds(
    DeliveryState,
    tries=small,
    retry_at=st.sampled_from([None, NOW]),
    error=st.sampled_from(["", "why"]),
    isolate_until=st.integers(-1, 2),
    parked_at=st.sampled_from([None, NOW]),
    parked_why=st.sampled_from(["", "refused"]),
)


def _call(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.tuples(st.just(name), *arguments)


def _weighted(*calls: tuple[int, st.SearchStrategy[Call]]) -> st.SearchStrategy[Call]:
    """`one_of` with weights."""
    numbers = [number for number, (weight, _) in enumerate(calls) for _ in range(weight)]
    return st.sampled_from(numbers).flatmap(lambda number: calls[number][1])


tokens = st.none() | st.builds(Token, small, digests)
halves = st.none() | st.builds(BatchInDelivery, small, digests, st.sampled_from(["rows1", "rows2"]), small)
some_letters = st.integers(0, 3)
stream = st.just(STREAM)
calls_to_one_stream = _weighted(
    (3, _call("prepare", batches, st.just(b"one"), runs)),
    (3, _call("prepare", batches, st.just(b"one"), runs, digests, some_letters)),
    (2, _call("replace", batches, runs, some_letters)),
    (1, _call("claim", stream, runs)),
    (3, _call("look", small)),
    (2, _call("give_up", small)),
    (2, _call("abort_record", small)),
    (3, _call("finish", st.builds(Batch, stream, batch_ids, st.just("d0")), ends, st.none(), some_letters)),
    (1, _call("prune", stream, st.just(3600), small, st.just(1000))),
    (3, _call("acquire", holders, st.sampled_from([0.0, 60.0]))),
    (3, _call("renew", holders)),
    (3, _call("release", holders)),
    (3, _call("set_state", holders, states)),
    (3, _call("plan_delivery")),
    (6, _call("prepare_delivery", holders, st.sampled_from([0, 0, 0, 1]), st.integers(1, 3), st.booleans())),
    (3, _call("finish_delivery", numbers, versions, some_letters)),
    (3, _call("abandon", holders, numbers)),
    (1, _call("read_progress", holders)),
    (4, _call("write_progress", holders, tokens, halves, st.booleans(), some_letters)),
    (1, _call("sources_removed", st.integers(1, 4))),
    (1, _call("backlog", stream, small)),
    (3, _call("skip", small, st.none() | digests)),
    (2, _call("abort_pending", st.integers(-1, 1), st.none() | digests)),
    (1, _call("park", stream, st.just("me"), st.just("why"))),
    (1, _call("retry", stream, st.just("me"), st.just("why"))),
    (1, _call("wait", stream, st.just(NOW))),
)
"""Of many processes to a stream with batches 0 to 2 PREPARED, and a lease on it."""

streams, tables = st.sampled_from(STREAMS), st.sampled_from(["t1", "t2"])
batches_of_streams = st.builds(Batch, streams, small, st.sampled_from(["d0", "d1"]))
some_settings = st.sampled_from(["", '{"delivery": "decoupled"}'])
new_runs = st.sampled_from(["r1", "r2", "r3"])
expiries = st.builds(
    lambda one, table, expired_at: Expiry(one, "/lake/a", table, b"files", NOW, expired_at),
    st.sampled_from(["e1", "e2"]),
    tables,
    st.sampled_from([None, NOW, NOW + timedelta(hours=1)]),
)
calls_to_streams: st.SearchStrategy[Call] = st.one_of(
    _call("register_stream", streams, st.just("delta"), st.sampled_from(["", "name"]), tables, some_settings),
    _call("claim", streams, new_runs),
    _call("prepare", batches_of_streams, st.sampled_from([b"one", b"other"]), new_runs),
    _call("finish", batches_of_streams, ends, versions),
    _call("accept_table", streams, st.just("t3"), small),
    _call("prune", streams, st.just(3600), small, st.just(1000)),
    _call("put", expiries),
    _call("add_deleted", expiries, small),
    _call("remove", expiries),
)
"""To a new store, for several streams and their tables."""

histories = st.lists(calls_to_one_stream, min_size=10, max_size=40)


# Side by side ---------------------------------------------------------------------------------------------


def compare(history: list[Call], *, is_begun: bool = True) -> None:
    """
    Args:
        is_begun: has the stream been registered, with batches that wait?

    Raises:
        AssertionError: the stores answer one of the calls, or what can be asked after all, differently.
    """
    memory, real = Processes(MemoryStore(lambda: NOW)), Processes(empty_store())
    for call in [*(BEGINNING if is_begun else ()), *history]:
        told, expected = real.answer(call), memory.answer(call)
        assert told == expected, f"{call[0]}: {told!r} instead of {expected!r}"
    told, expected = list(everything(real.store)), list(everything(memory.store))
    assert told == expected, f"it holds {told!r} instead of {expected!r}"


BEGINNING: list[Call] = [
    ("register_stream", STREAM, "delta", "", "t1"),
    ("claim", STREAM, "r1"),
    *[("prepare", Batch(STREAM, batch_id, "d0"), b"one", "r1", None, batch_id) for batch_id in range(3)],
    ("acquire", "d1", 60.0),
    *[("look", batch_id) for batch_id in range(3)],
    ("plan_delivery",),
]


def everything(store: MemoryStore | SqlManifestStore) -> Iterator[object]:
    """All that can be asked."""
    deliveries: Any = store.deliveries
    for key in STREAMS:
        yield [store.written_table(key), list(store.pending(key)), list(store.history(key, 2))]
        yield [store.settings(key), deliveries.state(key), deliveries.backlog(key)]
        yield [deliveries.backlog(key, 2, 1), deliveries.backlog(key, since=1), list(_pages(deliveries, key))]
        yield [(store.record(key, number), store.manifest(key, number)) for number in range(4)]
        yield [
            list(deliveries.manifests_of(key, [Batch(key, n, "") for n in some])) for some in ([0], [1, 2, 3])
        ]
        yield [list(store.manifests(key, state)) for state in ManifestState]
        yield store.progress.read(key)
        yield [deliveries.unfinished(key), list(deliveries.deliverable(key))]
        yield [list(deliveries.with_sources(key)), list(deliveries.operator_actions(key))]
        letters = store.dead_letters
        yield [letters.waiting(key), [list(letters.of_batch(Batch(key, n, ""))) for n in range(4)]]
        for one in deliveries.recent(key, 100):
            yield [one, deliveries.manifest(one), list(deliveries.sources(one))]
    for before in (None, NOW, NOW + timedelta(hours=2)):
        yield [list(store.expiries.of_table(table, before)) for table in ("t1", "t2")]


def _pages(deliveries: Any, key: StreamKey) -> Iterator[object]:
    """One batch at a time."""
    after = None
    while some := deliveries.deliverable(key, 1, after):
        yield some
        after = some[-1].batch.batch_id


def empty_store() -> SqlManifestStore:
    """The one of this process, emptied: making its tables takes longer than a history."""
    store = store_in_memory()
    with store.engine.begin() as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(table.delete())
        connection.exec_driver_sql("DELETE FROM sqlite_sequence")
    return store


@cache
def store_in_memory() -> SqlManifestStore:
    return open_store_in_memory(lambda: NOW)


def differs_after(histories_max: int) -> tuple[int, str]:
    """How many histories it took until the stores differed, and in what; empty if they never did."""
    played, found = 0, (histories_max, "")

    @settings(
        max_examples=histories_max,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(histories)
    def play(history: list[Call]) -> None:
        nonlocal played, found
        played += 1
        try:
            compare(history)
        except Exception as error:  # noqa: BLE001  a store without a guard ends in what it likes
            found = found if found[1] else (played, f"{type(error).__name__}: {error}".splitlines()[0])
            raise AssertionError from None

    try:
        play()
    except AssertionError:
        return found
    return found
