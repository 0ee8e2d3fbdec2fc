"""Calls to a manifest store, in random order and from several processes.

The simulation's store must answer each as the real one does: then what holds of histories with the one holds
with the other.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.simulation.memory_store import MemoryStore

from penstock.committers.contract import (
    Batch,
    Manifest,
    ManifestRecord,
    ManifestState,
    StreamKey,
)
from penstock.committers.deliveries.contract import Delivery, DeliveryState, Lease
from penstock.committers.errors import PenstockError
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory
from penstock.committers.store.tables import metadata

NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)
STATES = (ManifestState.COMMITTED, ManifestState.ABORTED)
ONE_STREAM = StreamKey("q1", "/lake/a")
CALLS_MIN, CALLS_MAX = 10, 40

small = st.integers(0, 2)


# What can be asked --------------------------------------------------------------------------------------


def everything_of(store: MemoryStore | SqlManifestStore, stream: StreamKey) -> list[object]:
    asked: list[object] = [store.written_table(stream), list(store.pending(stream))]
    asked += [list(store.history(stream, 2))]
    asked += [store.settings(stream), *everything_delivered(store, stream)]
    asked += [store.record(stream, batch_id) for batch_id in range(4)]
    asked += [store.manifest(stream, batch_id) for batch_id in range(4)]
    return asked + [list(store.manifests(stream, state)) for state in ManifestState]


def everything_delivered(store: MemoryStore | SqlManifestStore, stream: StreamKey) -> list[object]:
    deliveries: Any = store.deliveries
    asked = [deliveries.state(stream), deliveries.backlog(stream), deliveries.unfinished(stream)]
    asked += [list(deliveries.deliverable(stream)), list(deliveries.with_sources(stream))]
    asked.append(list(deliveries.operator_actions(stream)))
    recent = list(deliveries.recent(stream, 100))
    asked += [recent, [deliveries.manifest(one) for one in recent]]
    asked.append([list(deliveries.sources(one)) for one in recent])
    return asked


# Who calls ------------------------------------------------------------------------------------------------

HOLDERS = ("d1", "d2")


class Play:
    """One store, and what processes remember of it: their leases, and deliveries and records as seen."""

    def __init__(self, store: MemoryStore | SqlManifestStore) -> None:
        self.store = store
        self.deliveries: Any = store.deliveries
        self.leases: dict[str, Lease] = {}
        self.seen: list[Delivery] = []
        self.records: dict[int, ManifestRecord] = {}

    def look(self, batch_id: int) -> object:
        record = self.store.record(ONE_STREAM, batch_id)
        if record is not None:
            self.records[batch_id] = record
        return record

    def abort_from(self, batch_id: int) -> object:
        seen = self.records.get(batch_id)
        return None if seen is None else self.store.abort_from(seen, "given up for its replay")

    def abort(self, batch_id: int) -> object:
        seen = self.records.get(batch_id)
        if seen is None:
            return None
        return self.store.finish(seen.batch, ManifestState.ABORTED, reason="gone", expected=seen)

    def replace(self, manifest: Manifest, run_id: str) -> object:
        seen = self.records.get(manifest.batch.batch_id)
        return None if seen is None else self.store.prepare(manifest, run_id, replacing=seen)

    def acquire(self, holder: str, seconds: float) -> object:
        lease = self.deliveries.acquire(ONE_STREAM, holder, seconds)
        if lease is not None:
            self.leases[holder] = lease
        return lease

    def renew(self, holder: str) -> object:
        return self.deliveries.renew(self.leases[holder], 60.0) if holder in self.leases else None

    def release(self, holder: str) -> object:
        return self.deliveries.release(self.leases[holder]) if holder in self.leases else None

    def prepare(self, holder: str, first: int, last: int, digest: str, is_compacted: bool) -> object:
        if holder not in self.leases:
            return None
        manifest = delivery_manifest(first, last, digest)
        given = (self.leases[holder], manifest, "age")
        delivery = self.deliveries.prepare(*given, is_compacted=is_compacted)
        self.seen.append(delivery)
        return delivery

    def finish(self, number: int, version: int | None) -> object:
        return self.deliveries.finish(self.seen[number], version) if number < len(self.seen) else None

    def abandon(self, number: int) -> object:
        return self.deliveries.abandon(self.seen[number], "why") if number < len(self.seen) else None

    def set_state(self, holder: str, state: DeliveryState) -> object:
        return self.deliveries.set_state(self.leases[holder], state) if holder in self.leases else None


def delivery_manifest(first: int, last: int, digest: str) -> Manifest:
    merged = tuple([Batch(ONE_STREAM, batch_id, digest) for batch_id in range(first, last + 1)])
    return Manifest(merged[-1], "delta", 1, b"merged", 5, 6, 7, is_empty=False, merged=merged)


Move = Callable[[Play], Any]

holders = st.sampled_from(HOLDERS)
numbers = st.integers(0, 3)
runs = st.sampled_from(["r1", "r1", "r2"])
digests = st.sampled_from(["d0", "d0", "d0", "d1"])
states = st.builds(
    DeliveryState,
    tries=small,
    retry_at=st.sampled_from([None, NOW]),
    error=st.sampled_from(["", "why"]),
    isolate_until=st.integers(-1, 2),
    parked_at=st.sampled_from([None, NOW]),
    parked_why=st.sampled_from(["", "refused"]),
)


def written(batch_id: int, digest: str, content: bytes) -> Manifest:
    return Manifest(Batch(ONE_STREAM, batch_id, digest), "delta", 1, content, 2, 3, 4, is_empty=False)


moves: st.SearchStrategy[tuple[str, Move]] = st.one_of(
    st.builds(
        lambda batch_id, digest, run: (
            "prepare batch",
            lambda play: play.store.prepare(written(batch_id, digest, b"one"), run),
        ),
        st.integers(0, 4),
        digests,
        runs,
    ),
    st.builds(
        lambda batch_id, digest, run, before: (
            "prepare a follower",
            lambda play: play.store.prepare(
                written(batch_id, digest, b"one"), run, follows=Batch(ONE_STREAM, batch_id - 1, before)
            ),
        ),
        st.integers(1, 4),
        digests,
        runs,
        digests,
    ),
    st.builds(
        lambda batch_id, digest, run: (
            "replace batch",
            lambda play: play.replace(written(batch_id, digest, b"other"), run),
        ),
        small,
        digests,
        runs,
    ),
    st.builds(lambda run: ("claim", lambda play: play.store.claim(ONE_STREAM, run)), runs),
    st.builds(lambda n: ("look", lambda play: play.look(n)), small),
    st.builds(lambda n: ("give up from", lambda play: play.abort_from(n)), small),
    st.builds(lambda n: ("abort", lambda play: play.abort(n)), small),
    st.builds(lambda n: ("backlog", lambda play: play.deliveries.backlog(ONE_STREAM, n)), small),
    st.builds(
        lambda batch_id, state: (
            "finish batch",
            lambda play: play.store.finish(Batch(ONE_STREAM, batch_id, "d0"), state, reason="why"),
        ),
        st.integers(0, 4),
        st.sampled_from(STATES),
    ),
    st.builds(
        lambda h, s: ("acquire", lambda play: play.acquire(h, s)), holders, st.sampled_from([0.0, 60.0])
    ),
    st.builds(lambda h: ("renew", lambda play: play.renew(h)), holders),
    st.builds(lambda h: ("release", lambda play: play.release(h)), holders),
    st.builds(
        lambda h, first, more, digest, is_compacted: (
            "prepare delivery",
            lambda play: play.prepare(h, first, first + more, digest, is_compacted),
        ),
        holders,
        small,
        small,
        digests,
        st.booleans(),
    ),
    st.builds(
        lambda n, version: ("finish delivery", lambda play: play.finish(n, version)),
        numbers,
        st.sampled_from([None, 7]),
    ),
    st.builds(lambda n: ("abandon", lambda play: play.abandon(n)), numbers),
    st.builds(lambda h, state: ("set_state", lambda play: play.set_state(h, state)), holders, states),
    st.builds(
        lambda n: ("sources_removed", lambda play: play.deliveries.sources_removed(n)), st.integers(1, 4)
    ),
    st.builds(lambda n: ("skip", lambda play: play.deliveries.skip(ONE_STREAM, n, "me", "why")), small),
    st.builds(
        lambda n, digest: (
            "skip what was seen",
            lambda play: play.deliveries.skip(
                ONE_STREAM, n, "me", "why", expected=Batch(ONE_STREAM, n, digest)
            ),
        ),
        small,
        digests,
    ),
    st.builds(
        lambda n: ("abort", lambda play: play.deliveries.abort_pending(ONE_STREAM, n, "me", "why")),
        st.integers(-1, 2),
    ),
    st.builds(
        lambda n, digest: (
            "abort what was seen",
            lambda play: play.deliveries.abort_pending(
                ONE_STREAM, n - 1, "me", "why", expected=[Batch(ONE_STREAM, n, digest)]
            ),
        ),
        small,
        digests,
    ),
    st.just(("park", lambda play: play.deliveries.park(ONE_STREAM, "me", "why"))),
    st.just(("retry", lambda play: play.deliveries.retry(ONE_STREAM, "me", "why"))),
    st.just(("wait", lambda play: play.deliveries.wait(ONE_STREAM, NOW))),
    st.builds(lambda kept: ("prune", lambda play: play.store.prune(ONE_STREAM, 3600, kept, 1000)), small),
)


def answered(call: Callable[[Any], Any], given: Any) -> object:
    try:
        return call(given)
    except PenstockError as error:
        return type(error)


# Side by side -------------------------------------------------------------------------------------------

histories = st.lists(moves, min_size=CALLS_MIN, max_size=CALLS_MAX)


def compare(history: list[tuple[str, Move]]) -> None:
    """
    Raises:
        AssertionError: the stores answer one of the calls, or what can be asked after all, differently.
    """
    plays = [Play(MemoryStore(lambda: NOW)), Play(empty_store())]
    for play in plays:
        play.store.register_stream(ONE_STREAM, "delta", table_id="t1")
        play.store.claim(ONE_STREAM, "r1")
        for batch_id in range(3):
            play.store.prepare(written(batch_id, "d0", b"one"), "r1")
        play.acquire(HOLDERS[0], 60.0)
    for what, move in history:
        memory, real = (answered(move, play) for play in plays)
        assert memory == real, f"{what}: {real!r} instead of {memory!r}"
    memory, real = (everything_of(play.store, ONE_STREAM) for play in plays)
    assert memory == real, f"it holds {real!r} instead of {memory!r}"


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
    def play(history: list[tuple[str, Move]]) -> None:
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
