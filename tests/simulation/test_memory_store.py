"""The simulation's manifest store is held against the real one: the same calls, the same answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.memory_store import MemoryStore

from penstock.committers.contract import (
    Batch,
    Delivery,
    DeliveryState,
    Lease,
    Manifest,
    ManifestState,
    StreamKey,
)
from penstock.committers.errors import PenstockError
from penstock.committers.store.expiries import Expiry
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory

NOW = datetime(2026, 11, 20, tzinfo=timezone.utc)
STATES = (ManifestState.COMMITTED, ManifestState.ABORTED)
ONE_STREAM = StreamKey("q1", "/lake/a")
SETTINGS = ("", '{"delivery": "decoupled"}')

streams = st.sampled_from(
    [StreamKey("q1", "/lake/a"), StreamKey("q1", "/lake/b"), StreamKey("q2", "/lake/a")]
)
runs = st.sampled_from(["r1", "r2", "r3"])
small = st.integers(0, 2)


def batches() -> st.SearchStrategy[Batch]:
    return st.builds(Batch, streams, small, st.sampled_from(["d0", "d1"]))


def manifests() -> st.SearchStrategy[Manifest]:
    contents = st.sampled_from([b"one", b"other"])
    return st.builds(
        lambda batch, content: Manifest(batch, "delta", 1, content, 2, 3, 4, is_empty=False),
        batches(),
        contents,
    )


def expiries() -> st.SearchStrategy[Expiry]:
    times = st.sampled_from([None, NOW, NOW + timedelta(hours=1)])
    return st.builds(
        lambda one, table, expired_at: Expiry(one, "/lake/a", table, b"files", NOW, expired_at),
        st.sampled_from(["e1", "e2"]),
        st.sampled_from(["t1", "t2"]),
        times,
    )


Call = Callable[[Any], Any]

calls: st.SearchStrategy[tuple[str, Call]] = st.one_of(
    st.builds(
        lambda s, name, table, given: (
            "register",
            lambda store: store.register(s, "delta", name, table, settings=given),
        ),
        streams,
        st.sampled_from(["", "name"]),
        st.sampled_from(["t1", "t2"]),
        st.sampled_from(SETTINGS),
    ),
    st.builds(lambda s, run: ("claim", lambda store: store.claim(s, run)), streams, runs),
    st.builds(lambda m, run: ("prepare", lambda store: store.prepare(m, run)), manifests(), runs),
    st.builds(
        lambda b, state, version: (
            "finish",
            lambda store: store.finish(b, state, table_version=version, reason="why"),
        ),
        batches(),
        st.sampled_from(STATES),
        st.sampled_from([None, 7]),
    ),
    st.builds(
        lambda s, version: ("accept_table", lambda store: store.accept_table(s, "t3", version)),
        streams,
        small,
    ),
    st.builds(lambda s, kept: ("prune", lambda store: store.prune(s, 3600, kept, 1000)), streams, small),
    st.builds(lambda e: ("put expiry", lambda store: store.expiries.put(e)), expiries()),
    st.builds(
        lambda e, n: ("add_deleted", lambda store: store.expiries.add_deleted(e, n)), expiries(), small
    ),
    st.builds(lambda e: ("remove expiry", lambda store: store.expiries.remove(e)), expiries()),
)


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(st.lists(calls, max_size=30))
def test_the_same_calls_have_the_same_answers(history: list[tuple[str, Call]]) -> None:
    memory = MemoryStore(lambda: NOW)
    with open_store_in_memory(lambda: NOW) as sql:
        for what, call in history:
            assert answer(call, memory) == answer(call, sql), what
        assert everything(memory) == everything(sql)


def answer(call: Call, store: MemoryStore | SqlManifestStore) -> object:
    try:
        return call(store)
    except PenstockError as error:
        return type(error)


def everything(store: MemoryStore | SqlManifestStore) -> list[object]:
    """All that can be asked."""
    asked: list[object] = []
    for stream in (StreamKey("q1", "/lake/a"), StreamKey("q1", "/lake/b"), StreamKey("q2", "/lake/a")):
        asked += everything_of(store, stream)
    for before in (None, NOW, NOW + timedelta(hours=2)):
        asked += [list(store.expiries.of_table(table, before)) for table in ("t1", "t2")]
    return asked


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
    asked.append(list(deliveries.decisions(stream)))
    recent = list(deliveries.recent(stream, 100))
    asked += [recent, [deliveries.manifest(one) for one in recent]]
    asked.append([list(deliveries.sources(one)) for one in recent])
    return asked


# Deliveries ---------------------------------------------------------------------------------------------

HOLDERS = ("d1", "d2")


class Play:
    """One store, and what processes remember of it: their leases, and the deliveries that they have seen."""

    def __init__(self, store: MemoryStore | SqlManifestStore) -> None:
        self.store = store
        self.deliveries: Any = store.deliveries
        self.leases: dict[str, Lease] = {}
        self.seen: list[Delivery] = []

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
digests = st.sampled_from(["d0", "d0", "d0", "d1"])
states = st.builds(
    DeliveryState,
    tries=small,
    retry_at=st.sampled_from([None, NOW]),
    error=st.sampled_from(["", "why"]),
    alone_up_to=st.integers(-1, 2),
    parked_at=st.sampled_from([None, NOW]),
    parked_why=st.sampled_from(["", "refused"]),
)


def written(batch_id: int, digest: str, content: bytes) -> Manifest:
    return Manifest(Batch(ONE_STREAM, batch_id, digest), "delta", 1, content, 2, 3, 4, is_empty=False)


moves: st.SearchStrategy[tuple[str, Move]] = st.one_of(
    st.builds(
        lambda batch_id, digest: (
            "prepare batch",
            lambda play: play.store.prepare(written(batch_id, digest, b"one"), "r1"),
        ),
        st.integers(0, 4),
        digests,
    ),
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
        lambda n: ("abort", lambda play: play.deliveries.abort_pending(ONE_STREAM, n, "me", "why")),
        st.integers(-1, 2),
    ),
    st.just(("park", lambda play: play.deliveries.park(ONE_STREAM, "me", "why"))),
    st.just(("retry", lambda play: play.deliveries.retry(ONE_STREAM, "me", "why"))),
    st.just(("wait", lambda play: play.deliveries.wait(ONE_STREAM, NOW))),
    st.builds(lambda kept: ("prune", lambda play: play.store.prune(ONE_STREAM, 3600, kept, 1000)), small),
)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(st.lists(moves, max_size=40))
def test_the_same_deliveries_have_the_same_answers(history: list[tuple[str, Move]]) -> None:
    with open_store_in_memory(lambda: NOW) as sql:
        plays = [Play(MemoryStore(lambda: NOW)), Play(sql)]
        for play in plays:
            play.store.register(ONE_STREAM, "delta", table_id="t1")
            play.store.claim(ONE_STREAM, "r1")
            for batch_id in range(3):
                play.store.prepare(written(batch_id, "d0", b"one"), "r1")
        for what, move in history:
            assert answered(move, plays[0]) == answered(move, plays[1]), what
        memory, real = (everything_of(play.store, ONE_STREAM) for play in plays)
        assert memory == real


def answered(move: Move, play: Play) -> object:
    try:
        return move(play)
    except PenstockError as error:
        return type(error)


def test_a_backup_is_put_back_as_it_was() -> None:
    store, stream = MemoryStore(lambda: NOW), StreamKey("q1", "/lake/a")
    manifest = Manifest(Batch(stream, 0, "d0"), "delta", 1, b"one", 1, 1, 1, is_empty=False)
    store.register(stream, "delta", table_id="t1")
    store.claim(stream, "r1")
    store.prepare(manifest, "r1")
    backup, before = store.back_up(), everything(store)

    store.finish(manifest.batch, ManifestState.COMMITTED, table_version=3)
    store.prepare(replace(manifest, batch=Batch(stream, 1, "d1")), "r1")
    assert everything(store) != before

    store.restore(backup)
    assert everything(store) == before

    store.lose()
    assert store.record(stream, 0) is None
    assert store.written_table(stream) is None
