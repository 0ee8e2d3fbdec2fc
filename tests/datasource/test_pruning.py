"""The store of a stream that no delivery process serves does not grow for ever."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from tests.sink_stream import SinkStream

from penstock.committers.contract import StreamKey
from penstock.committers.store.sql import open_store
from penstock.datasource import committing
from penstock.datasource.committing import BATCHES_PER_PRUNING
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink

KEPT = 4


@pytest.fixture
def stream(tmp_path: Path) -> SinkStream:
    store = f"sqlite:///{tmp_path}/penstock.db"
    return SinkStream(DeltaSink(DeltaOptions(path=str(tmp_path / "table"), store=store, delivered_max=KEPT)))


def run(stream: SinkStream, first: int, last: int) -> None:
    stream.next_batch = first
    for batch_id in range(first, last + 1):
        stream.run(pa.table({"id": [batch_id]}))


def known_batches(stream: SinkStream) -> list[int]:
    with open_store(str(stream.sink.options.store)) as store:
        records = store.history(StreamKey(stream.query_id, stream.sink.table_uri), 1000)
    return [record.batch.batch_id for record in records]


def test_a_commit_now_and_then_forgets_what_is_long_done(stream: SinkStream) -> None:
    run(stream, BATCHES_PER_PRUNING - 8, BATCHES_PER_PRUNING + 1)

    newest = [BATCHES_PER_PRUNING + 1 - age for age in range(KEPT + 1)]
    assert known_batches(stream) == newest
    table = pl.read_delta(stream.sink.table_uri)
    assert sorted(table["id"]) == list(range(BATCHES_PER_PRUNING - 8, BATCHES_PER_PRUNING + 2))


def test_a_replay_of_the_last_batch_is_still_known(stream: SinkStream) -> None:
    """What Spark may run again stays, however few records are kept."""
    run(stream, BATCHES_PER_PRUNING - 8, BATCHES_PER_PRUNING)

    stream.next_batch = BATCHES_PER_PRUNING
    with pytest.raises(AssertionError, match="in the table already"):
        stream.run(pa.table({"id": [BATCHES_PER_PRUNING]}))


def test_a_long_history_is_forgotten_step_by_step(
    stream: SinkStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit waits for all of what an earlier version has left."""
    from penstock.committers.store import pruning

    monkeypatch.setattr(committing, "BATCHES_PRUNED_MAX", 2)
    monkeypatch.setattr(pruning, "BATCHES_AT_ONCE", 1)
    run(stream, BATCHES_PER_PRUNING - 10, BATCHES_PER_PRUNING)

    assert len(known_batches(stream)) == 11 - 2
