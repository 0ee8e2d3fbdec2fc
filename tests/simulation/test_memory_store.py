"""The simulation's manifest store is held against the real one: the same calls, the same answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.memory_store import MemoryStore
from tests.simulation.store_calls import NOW, STATES, Move, answered, compare, everything_of, histories, small

from penstock.committers.contract import (
    Batch,
    Manifest,
    ManifestState,
    StreamKey,
)
from penstock.committers.store.expiries import Expiry
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory

SETTINGS = ("", '{"delivery": "decoupled"}')

streams = st.sampled_from(
    [StreamKey("q1", "/lake/a"), StreamKey("q1", "/lake/b"), StreamKey("q2", "/lake/a")]
)
runs = st.sampled_from(["r1", "r2", "r3"])


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
            "register_stream",
            lambda store: store.register_stream(s, "delta", name, table, settings=given),
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
            assert answered(call, memory) == answered(call, sql), what
        assert everything(memory) == everything(sql)


def everything(store: MemoryStore | SqlManifestStore) -> list[object]:
    """All that can be asked."""
    asked: list[object] = []
    for stream in (StreamKey("q1", "/lake/a"), StreamKey("q1", "/lake/b"), StreamKey("q2", "/lake/a")):
        asked += everything_of(store, stream)
    for before in (None, NOW, NOW + timedelta(hours=2)):
        asked += [list(store.expiries.of_table(table, before)) for table in ("t1", "t2")]
    return asked


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(histories)
def test_the_same_deliveries_have_the_same_answers(history: list[tuple[str, Move]]) -> None:
    compare(history)


def test_a_backup_is_put_back_as_it_was() -> None:
    store, stream = MemoryStore(lambda: NOW), StreamKey("q1", "/lake/a")
    manifest = Manifest(Batch(stream, 0, "d0"), "delta", 1, b"one", 1, 1, 1, is_empty=False)
    store.register_stream(stream, "delta", table_id="t1")
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
