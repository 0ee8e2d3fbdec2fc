"""The simulation's manifest store answers the same calls as the real one does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.memory_store import MemoryStore
from tests.simulation.store_calls import (
    BEGINNING,
    NOW,
    STREAM,
    Call,
    Processes,
    calls_to_streams,
    compare,
    everything,
    histories,
)

from penstock.committers.contract import Batch, ManifestState


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(st.lists(calls_to_streams, max_size=30))
def test_calls_for_several_streams_have_the_same_answers(history: list[Call]) -> None:
    compare(history, is_begun=False)


@settings(max_examples=30, derandomize=True, deadline=None, database=None)
@given(histories)
def test_calls_of_several_processes_to_one_stream_have_the_same_answers(history: list[Call]) -> None:
    compare(history)


def test_a_backup_is_restored_as_it_was() -> None:
    processes = Processes(MemoryStore(lambda: NOW))
    for call in BEGINNING:
        processes.answer(call)
    store = processes.store
    backup, before = store.back_up(), list(everything(store))

    assert store.finish(Batch(STREAM, 0, "d0"), ManifestState.COMMITTED, table_version=3)
    processes.answer(("prepare", Batch(STREAM, 3, "d1"), b"one", "r1"))
    assert list(everything(store)) != before

    store.restore(backup)
    assert list(everything(store)) == before

    store.lose()
    assert store.record(STREAM, 0) is None
    assert store.written_table(STREAM) is None
