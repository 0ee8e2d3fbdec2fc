"""The store of a stream without a delivery process does not grow forever."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.lakes import LAKES
from tests.support.query import Batches, Query

from penstock.committers.store.sql import open_store
from penstock.datasource import committing
from penstock.datasource.committing import BATCHES_PER_PRUNING

KEPT = 4


@pytest.fixture
def stream(tmp_path: Path) -> Batches:
    options = {"store": f"sqlite:///{tmp_path}/penstock.db", "keepDelivered": str(KEPT)}
    options["newTarget"] = "allow"  # it starts just before the pruning
    return Batches(Query(LAKES["delta"](tmp_path), options=options))


def run(stream: Batches, first: int, last: int) -> None:
    stream.next_batch = first
    for batch_id in range(first, last + 1):
        stream.run([batch_id])


def known_batches(stream: Batches) -> list[int]:
    with open_store(stream.query.options["store"]) as store:
        records = store.history(stream.query.stream, 1000)
    return [record.batch.batch_id for record in records]


def test_a_commit_now_and_then_forgets_what_is_long_done(stream: Batches) -> None:
    run(stream, BATCHES_PER_PRUNING - 8, BATCHES_PER_PRUNING + 1)

    newest = [BATCHES_PER_PRUNING + 1 - age for age in range(KEPT + 1)]
    assert known_batches(stream) == newest
    assert stream.query.lake.ids() == list(range(BATCHES_PER_PRUNING - 8, BATCHES_PER_PRUNING + 2))


def test_a_replay_of_the_last_batch_is_still_known(stream: Batches) -> None:
    """The batch that Spark may replay is kept, however few records are kept."""
    run(stream, BATCHES_PER_PRUNING - 8, BATCHES_PER_PRUNING)

    stream.next_batch = BATCHES_PER_PRUNING
    with pytest.raises(AssertionError, match="in the table already"):
        stream.run([BATCHES_PER_PRUNING])


def test_a_long_history_is_forgotten_step_by_step(
    stream: Batches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No commit waits for long. It says which one continues."""
    from penstock.committers.store import pruning

    monkeypatch.setattr(committing, "BATCHES_PRUNED_MAX", 2)
    monkeypatch.setattr(committing, "PRUNING_S", 0.0)
    monkeypatch.setattr(pruning, "BATCHES_AT_ONCE", 1)
    with caplog.at_level("INFO", "penstock"):
        run(stream, BATCHES_PER_PRUNING - 10, BATCHES_PER_PRUNING)

    assert len(known_batches(stream)) == 11 - 2
    assert "Removed 2 old batches" in caplog.text
    assert "batch 200 continues" in caplog.text


def test_a_long_history_is_forgotten_at_once_if_that_is_fast(
    stream: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "BATCHES_PRUNED_MAX", 2)
    run(stream, BATCHES_PER_PRUNING - 10, BATCHES_PER_PRUNING)

    assert len(known_batches(stream)) == KEPT
