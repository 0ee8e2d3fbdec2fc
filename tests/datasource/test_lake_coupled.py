"""A coupled query of penstock.lake commits each batch to both tables before the next one starts."""

from __future__ import annotations

import sqlite3
from unittest import mock

import pytest
from tests.support.lake_pairs import LakePair, run

from penstock.committers.contract import ManifestState
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.errors import RetryableError, TableChangedError
from penstock.testing.conformance.query import ids
from penstock.testing.faults import at_point, crash_at

PREPARED, COMMITTED = ManifestState.PREPARED, ManifestState.COMMITTED


def test_a_coupled_query_commits_each_batch_to_both(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    for batch_id in range(2):
        run(pair, query, batch_id)
        assert pair.states(batch_id) == [COMMITTED] * 2
        assert pair.ids() == [list(range(2 * batch_id + 2))] * 2
    delta, iceberg = pair.named()
    assert delta == iceberg
    assert len(pair.files()) == 4


@pytest.mark.parametrize(
    ("point", "time"),
    [("prepare.done", 1), ("commit.start", 1), ("commit.landed", 1), ("mark.done", 1), ("commit.landed", 2)],
)
def test_a_crash_of_a_coupled_query_is_recovered_by_the_replay(pair: LakePair, point: str, time: int) -> None:
    query = pair.query(delivery="coupled")
    run(pair, query, 0)
    with crash_at(point, time):
        run(pair, query, 1)
    assert all(ids in ([0, 1], [0, 1, 2, 3]) for ids in pair.ids())
    files = pair.files()
    run(pair, query, 1, ids(8), run_id="r2")
    assert pair.files() == files, "the replay writes nothing"
    assert pair.ids() == [[0, 1, 2, 3]] * 2
    assert pair.states(1) == [COMMITTED] * 2
    run(pair, query, 2, run_id="r2")
    assert pair.ids() == [list(range(6))] * 2


def test_a_delivery_process_may_finish_what_a_coupled_query_left(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    with crash_at("commit.landed"):
        run(pair, query, 0)
    assert pair.ids() == [[], [0, 1]]
    assert pair.deliver().code == 0
    assert pair.ids() == [[0, 1]] * 2
    run(pair, query, 0, ids(8), run_id="r2")
    run(pair, query, 1, run_id="r2")
    assert pair.ids() == [[0, 1, 2, 3]] * 2


def test_a_table_that_a_coupled_query_cannot_reach_fails_the_batch(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    run(pair, query, 0)
    down = mock.patch.object(DeltaTableCommitter, "commit", side_effect=RetryableError("no network"))
    with down, pytest.raises(RetryableError, match="Target delta: no network"):
        run(pair, query, 1)
    assert pair.states(1) == [PREPARED, COMMITTED]
    run(pair, query, 1, run_id="r2")
    assert pair.ids() == [[0, 1, 2, 3]] * 2


def test_prepared_files_that_are_missing_are_written_again(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    run(pair, query, 0)
    before = pair.files()
    with crash_at("prepare.done"):
        run(pair, query, 1)
    for path in pair.files() - before:
        (pair.delta.folder / path).unlink()
    run(pair, query, 1, run_id="r2")
    assert pair.ids() == [[0, 1, 2, 3]] * 2


def test_files_that_are_missing_before_the_commit_fail_a_coupled_batch(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    run(pair, query, 0)
    before = pair.files()

    def delete() -> None:
        for path in pair.files() - before:
            (pair.delta.folder / path).unlink()

    with (
        at_point("prepare.done", delete),
        pytest.raises(RetryableError, match=r"Batch 1 of .* is not committed"),
    ):
        run(pair, query, 1)
    run(pair, query, 1, run_id="r2")
    assert pair.ids() == [[0, 1, 2, 3]] * 2


def test_a_table_whose_metadata_was_restored_is_not_written_by_a_coupled_query(pair: LakePair) -> None:
    query = pair.query(delivery="coupled")
    for batch_id in range(2):
        run(pair, query, batch_id)

    def restore() -> None:
        with sqlite3.connect(pair.root / "warehouse" / "catalog.sqlite") as catalog:
            catalog.execute("UPDATE iceberg_tables SET metadata_location = previous_metadata_location")
        catalog.close()

    with at_point("prepare.done", restore), pytest.raises(TableChangedError, match="restored from a copy"):
        run(pair, query, 2)
    assert pair.ids() == [[0, 1, 2, 3], [0, 1]]
