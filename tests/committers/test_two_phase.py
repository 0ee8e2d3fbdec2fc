"""What the two-phase committer promises, with a real store and a real table of each format.

Every batch goes the way that Spark and the data source take it: plan, write, commit, abort if that fails.
"""

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import Mock

import pyarrow as pa
import pytest
from tests.support.lakes import LAKES, LakeTable
from tests.support.query import Ids, Query, Written

from penstock.committers.contract import Conflict, Manifest, ManifestRecord, ManifestState, StreamKey
from penstock.committers.crash_points import DELIVERY_POINTS, STREAM_POINTS
from penstock.committers.errors import (
    CheckpointMismatchError,
    CommitStateUnknownError,
    FencedError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
)
from penstock.committers.file_tables.merge import merge
from penstock.committers.protocol.commit_runner import Retry
from penstock.committers.protocol.decision import Action
from penstock.committers.protocol.recovery import Recovery
from penstock.committers.store.contract import Prepared, PrepareRequest
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.planning.batch_plan import BatchPlan
from penstock.testing.faults import at_point, crash_at

PREPARED, COMMITTED, ABORTED = ManifestState.PREPARED, ManifestState.COMMITTED, ManifestState.ABORTED
PARTS: Sequence[Ids] = ([1, 2], [3])


@pytest.fixture
def query(lake: LakeTable) -> Query:
    return Query(lake)


@pytest.fixture
def query_by_day(lake: LakeTable) -> Query:
    """A query whose table can be partitioned by day."""
    return Query(lake, schema=pa.schema([("id", pa.int64()), ("day", pa.string())]))


@pytest.fixture
def delta_query(tmp_path: Path) -> Query:
    return Query(LAKES["delta"](tmp_path))


@pytest.fixture
def iceberg_query(tmp_path: Path) -> Query:
    return Query(LAKES["iceberg"](tmp_path))


@pytest.fixture
def store(store_url: str) -> Iterator[SqlManifestStore]:
    with open_store(store_url) as opened:
        yield opened


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[SqlManifestStore]:
    """For tests that lose, copy or replace the store: its file is `store.db`."""
    with open_store(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


def data_files(query: Query) -> set[str]:
    """By their paths in the folder of data files."""
    table = query.lake
    return {str((table.folder / path).relative_to(query.lake.data_folder)) for path in table.data_files()}


def prepare_only(query: Query, store: SqlManifestStore, batch_id: int = 0, offsets: object = "") -> Written:
    """A driver that dies right after it has prepared the batch."""
    batch = query.batch(batch_id, offsets)
    written = query.write(query.plan(store, batch), PARTS, "dead")
    with crash_at("prepare.done"):
        query.commit(store, written)
    assert query.state(store, batch_id) is PREPARED
    return written


# Replays ----------------------------------------------------------------------------------------------


def test_a_pending_batch_that_the_table_has_otherwise_is_not_forgotten_once_spark_has_moved_on(
    query: Query, store: SqlManifestStore, tmp_path: Path
) -> None:
    """A checkpoint fork has committed the batch id. The original, decoupled then, has logged its own."""
    prepare_only(query, store)
    with open_store(f"sqlite:///{tmp_path}/copy.db") as copy:
        query.run(copy, query.batch(0, "of the copy"), [4], run_id="c1")
    for step in (
        lambda: query.plan(store, query.batch(1)),
        lambda: query.two_phase(store).recovery.recover(query.stream),
    ):
        with pytest.raises(CheckpointMismatchError, match="in the table from other source offsets"):
            step()
    assert query.state(store, 0) is PREPARED


def test_a_pending_batch_is_not_committed_after_a_fork(
    query: Query, store: SqlManifestStore, tmp_path: Path
) -> None:
    """The batch of the original was skipped. The fork, with its own store, has committed other rows."""
    prepare_only(query, store, 0, "old")
    later = query.write(query.plan_of(1), [[9]], "dead")
    store.prepare(later.manifest, "dead")
    store.deliveries.skip(query.stream, 0, "ann", "broken")
    with open_store(f"sqlite:///{tmp_path}/copy.db") as copy:
        query.run(copy, query.batch(0, "of the copy"), [4], run_id="c1")
    with pytest.raises(CheckpointMismatchError, match="in the table from other source offsets"):
        query.two_phase(store).recovery.recover(query.stream)
    assert query.state(store, 1) is PREPARED


def test_a_fork_stops_later_batches(query: Query, store: SqlManifestStore, tmp_path: Path) -> None:
    """As above, and the fork commits first. Both may have read the same rows."""
    query.run(store, query.batch(0), [1], run_id="r1")
    prepare_only(query, store, 1, "skipped")
    store.deliveries.skip(query.stream, 1, "ann", "broken")
    written = query.write(query.plan(store, query.batch(2)), [[9]], "r2")
    with open_store(f"sqlite:///{tmp_path}/copy.db") as copy:
        ahead = query.batch(1, "of the copy")
        with (
            at_point("prepare.done", lambda: query.run(copy, ahead, [9], run_id="c1")),
            pytest.raises(CheckpointMismatchError, match=r"Batch 1 of .* in the table from"),
        ):
            query.commit(store, written)
    assert query.state(store, 2) is ABORTED
    assert query.holds(store, [1, 9])


@pytest.mark.parametrize("batch_id", [1, 5])
def test_a_checkpoint_fork_is_an_error_if_the_store_was_lost(
    query: Query, store: SqlManifestStore, tmp_path: Path, batch_id: int
) -> None:
    """Also if undelivered batches were lost with it: then the last batch of the table is older."""
    query.run(store, query.batch(0, "of the copy"), *PARTS, run_id="r1")
    with open_store(f"sqlite:///{tmp_path}/empty.db") as empty:
        with pytest.raises(CheckpointMismatchError, match="after batch 0, which the table has from other"):
            query.two_phase(empty).begin(query.batch(batch_id), lambda number: query.batch(number).digest)
        same = {0: query.batch(0, "of the copy").digest}
        assert query.two_phase(empty).begin(query.batch(batch_id), same.get) is Action.WRITE


def test_a_checkpoint_fork_is_an_error(query: Query, store: SqlManifestStore) -> None:
    """Each start gives the digest that its checkpoint has for the batch before."""
    query.run(store, query.batch(0, "of the copy"), *PARTS, run_id="r1")
    with pytest.raises(CheckpointMismatchError, match="after batch 0, which the store has from other"):
        query.two_phase(store).begin(query.batch(1), lambda _: query.batch(0).digest)
    same = query.batch(0, "of the copy").digest
    assert query.two_phase(store).begin(query.batch(1), lambda _: same) is Action.WRITE


def test_an_unknown_outcome_of_prepare_deletes_nothing(
    query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = store.prepare_all

    def prepare_without_answer(*arguments: Any, **named: Any) -> NoReturn:
        prepare(*arguments, **named)
        raise CommitStateUnknownError("The store did not answer.")

    written = query.write(query.plan(store, query.batch(0)), PARTS, "r1")
    with monkeypatch.context() as patched:
        patched.setattr(store, "prepare_all", prepare_without_answer)
        with pytest.raises(CommitStateUnknownError):
            query.commit(store, written)
    assert data_files(query) == set(written.paths)
    query.two_phase(store).recovery.recover(query.stream)
    assert query.holds(store, [1, 2, 3])


def test_the_manifest_of_other_rows_is_not_taken_for_an_earlier_one(
    query: Query, store: SqlManifestStore
) -> None:
    """A fork has replaced the stored manifest after this driver had read it."""
    written = query.write(query.plan(store, query.batch(0)), PARTS, "r1")
    prepare_only(query, store)
    with (
        at_point("prepare.done", lambda: query.run(store, query.batch(0, "of the copy"), [4], run_id="r2")),
        pytest.raises(RetryableError, match="has the manifest of other rows"),
    ):
        query.commit(store, written)
    assert query.holds(store, [4])


def test_a_checkpoint_fork_aborts_nothing(query: Query, store: SqlManifestStore) -> None:
    """The other query has logged what it prepared, and would not write it again."""
    query.run(store, query.batch(0, "of the copy"), *PARTS, run_id="r1")
    prepare_only(query, store, 1, "of the copy")
    with pytest.raises(CheckpointMismatchError, match="after batch 0, which the store has from other"):
        query.two_phase(store).begin(query.batch(1), lambda _: query.batch(0).digest)
    assert query.state(store, 1) is PREPARED


def test_the_table_overrides_the_store(query: Query, store: SqlManifestStore, tmp_path: Path) -> None:
    """The store has a batch only as aborted, and the table has it."""
    prepare_only(query, store, 0, "old")
    query.plan(store, query.batch(0))
    with open_store(f"sqlite:///{tmp_path}/current.db") as current:
        query.run(current, query.batch(0), *PARTS, run_id="r2")
    digest = query.batch(0).digest
    assert query.two_phase(store).begin(query.batch(1), lambda _: digest) is Action.WRITE


def test_a_batch_that_is_being_delivered_is_not_aborted(query: Query, store: SqlManifestStore) -> None:
    """A stream that was decoupled is started coupled; its delivery may be committed at any time."""
    written = prepare_only(query, store)
    lease = store.deliveries.acquire(query.stream, "somebody", 60)
    assert lease is not None
    store.deliveries.prepare(lease, merge([written.manifest]), "age", is_compacted=False)
    delete(query, written)
    with pytest.raises(RetryableError, match="is being delivered"):
        query.plan(store, written.batch)
    assert query.state(store, 0) is PREPARED


def test_a_pending_batch_of_a_copied_checkpoint_does_not_count_as_delivered_with_a_later_one(
    query: Query, store: SqlManifestStore, tmp_path: Path
) -> None:
    """The original has delivered that batch id from other offsets, and later ones: the history has them."""
    query.run(store, query.batch(0), [0], run_id="r1")
    with open_store(f"sqlite:///{tmp_path}/copy.db") as copy:
        prepare_only(query, copy, batch_id=1, offsets="of the copy")
        query.run(store, query.batch(1), [4], run_id="r1")
        query.run(store, query.batch(2), [5], run_id="r1")

        for step in (
            lambda: query.two_phase(copy).recovery.recover(query.stream),
            lambda: query.plan(copy, query.batch(1, "of the copy")),
        ):
            with pytest.raises(CheckpointMismatchError):
                step()
            assert query.state(copy, 1) is ABORTED
    assert query.holds(store, [0, 4, 5])


def test_a_batch_behind_stops_the_query(query: Query, store: SqlManifestStore, tmp_path: Path) -> None:
    """Skipping it might drop rows, writing it might double them."""
    for batch_id in range(2):
        query.run(store, query.batch(batch_id), [batch_id], run_id="r1")
    with open_store(f"sqlite:///{tmp_path}/new.db") as new:
        with pytest.raises(
            CheckpointMismatchError, match="behind the table, which already has batch 1"
        ) as failure:
            query.plan(new, query.batch(0))
    assert_names_the_commands(failure.value)


def assert_names_the_commands(error: CheckpointMismatchError) -> None:
    assert "penstock show q1 0" in str(error)
    assert "penstock reset-query-id <checkpoint>" in str(error)


def test_offsets_that_change_before_prepare_stop_the_query(query: Query, store: SqlManifestStore) -> None:
    """A concurrent driver on a checkpoint fork has prepared other rows. Neither is committed as the other."""
    batch = query.batch(0, "ours")
    written = query.write(query.plan(store, batch), PARTS, "r1")
    prepare_only(query, store, offsets="theirs")
    with pytest.raises(CheckpointMismatchError, match="by another run"):
        query.commit(store, written)
    assert query.lake.count() == 0


def test_a_rewound_checkpoint_supersedes_later_batches(query: Query, store: SqlManifestStore) -> None:
    """Batch 1 was prepared, then the checkpoint was set back to batch 0: batch 1 is going to come back."""
    query.run(store, query.batch(0), [0], run_id="r1")
    prepare_only(query, store, batch_id=1, offsets="old")

    assert query.plan(store, query.batch(0)).writers is None
    query.run(store, query.batch(1, "new"), [1, 2], run_id="r2")
    assert query.holds(store, [0, 1, 2])


def test_a_rewound_checkpoint_needs_no_later_files(query: Query, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), [0], run_id="r1")
    delete(query, prepare_only(query, store, batch_id=1))

    query.run(store, query.batch(0), [0], run_id="r2")
    query.run(store, query.batch(1), *PARTS, run_id="r2")
    assert query.holds(store, [0, 1, 2, 3])


def test_a_batch_that_was_skipped_in_vain_is_not_confirmed(query: Query, store: SqlManifestStore) -> None:
    """Between the plan and the commit the table lost the batch: Spark must not log it as done."""
    query.run(store, query.batch(0), *PARTS, run_id="r1")
    skipped = query.write(BatchPlan(query.batch(1)), PARTS, "r2")
    with pytest.raises(RetryableError, match="skipped but is not in the table"):
        query.commit(store, skipped)


# Missing files ----------------------------------------------------------------------------------------


def delete(query: Query, written: Written) -> None:
    for path in written.paths:
        (query.lake.data_folder / path).unlink()


def test_a_batch_with_a_missing_file_is_written_again(query: Query, store: SqlManifestStore) -> None:
    written = prepare_only(query, store)
    (query.lake.data_folder / min(written.paths)).unlink()
    query.run(store, written.batch, *PARTS, run_id="r2")
    record = store.record(query.stream, 0)
    assert record is not None
    assert (record.state, record.run_id) == (COMMITTED, "r2")
    assert query.holds(store, [1, 2, 3])


def test_a_late_manifest_without_files_is_written_again(query: Query, store: SqlManifestStore) -> None:
    """The database executed the request late, and its files were vacuumed meanwhile."""
    batch = query.batch(0)
    late = query.write(query.plan(store, batch), PARTS, "r1")
    store.claim(query.stream, "r1")
    delete(query, late)
    written = query.write(query.plan(store, batch), PARTS, "r2")
    store.prepare(late.manifest, "r1")

    query.commit(store, written)
    record = store.record(query.stream, 0)
    assert record is not None
    assert (record.state, record.run_id) == (COMMITTED, "r2")
    assert query.holds(store, [1, 2, 3])


def test_a_batch_that_a_concurrent_driver_has_prepared_again_is_kept(
    query_by_day: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table no longer accepts the batch of an earlier run. The slower driver must not replace
    what the other one has written.
    """
    query, batch = query_by_day, query_by_day.batch(0)
    prepare_only(query, store)
    query.lake.partition_by_day()
    ours = query.write(query.plan(store, batch), PARTS, "r2")
    again: list[Written] = []
    prepare = store.prepare_all

    def other_driver_acts(requests: Sequence[PrepareRequest], run_id: str) -> Sequence[Prepared]:
        if requests[0].replacing is not None and not again:
            again.append(query.write(query.plan(store, batch), PARTS, "other"))
            with crash_at("commit.start"):
                query.commit(store, again[0])
        return prepare(requests, run_id)

    monkeypatch.setattr(store, "prepare_all", other_driver_acts)
    with pytest.raises(FencedError):
        query.commit(store, ours)
    record = store.record(query.stream, 0)
    assert record is not None
    assert (record.state, record.run_id) == (PREPARED, "other")
    query.commit(store, again[0])
    assert query.holds(store, [-1, 1, 2, 3])
    assert not ours.paths & data_files(query)


@pytest.mark.parametrize("point", ["prepare.done", "commit.start"])
def test_a_vacuum_after_prepare_costs_no_rows(
    delta_query: Query, store: SqlManifestStore, point: str
) -> None:
    """The commit is retried on the version after the vacuum, and must notice it.

    Iceberg tables do not record the removal of orphan files.
    """
    query = delta_query
    batch = query.batch(0)
    with at_point(point, query.lake.vacuum):
        with pytest.raises(RetryableError, match="was vacuumed"):
            query.run(store, batch, *PARTS, run_id="r1")
    assert query.lake.count() == 0

    query.run(store, batch, *PARTS, run_id="r2")
    assert query.holds(store, [1, 2, 3])


def test_recovery_never_passes_a_batch_that_stays_prepared(query: Query, store: SqlManifestStore) -> None:
    """With the token of the later batch, the earlier one would count as committed."""
    query.plan(store, query.batch(0))
    first, second = (query.write(query.plan_of(n), [[n]], "r1") for n in range(2))
    store.claim(query.stream, "r1")
    for written in (first, second):
        store.prepare(written.manifest, "r1")
    delete(query, first)

    recovered = query.two_phase(store).recovery.recover(query.stream)
    assert [batch.state for batch in recovered] == [PREPARED]
    assert [record.batch.batch_id for record in store.pending(query.stream)] == [0, 1]
    assert query.target().token(query.query_id) is None


def test_recovery_never_passes_a_batch_that_awaits_replay(query: Query, store: SqlManifestStore) -> None:
    """Nor a later batch that an operator has skipped."""
    query.plan(store, query.batch(0))
    store.claim(query.stream, "r1")
    for number in range(3):
        store.prepare(query.write(query.plan_of(number), [[number]], "r1").manifest, "r1")
    store.finish(query.batch(0), ABORTED, reason="the replay writes it again")
    assert store.deliveries.skip(query.stream, 1, "ann", "broken")

    (recovered,) = query.two_phase(store).recovery.recover(query.stream)
    assert recovered.state is PREPARED
    assert "the earlier batch 0 was aborted" in recovered.reason
    assert [record.batch.batch_id for record in store.pending(query.stream)] == [2]

    with pytest.raises(CheckpointMismatchError, match="batch 0 was aborted and never written again"):
        query.two_phase(store).begin(query.batch(3), lambda _: query.batch(2).digest)
    assert query.target().token(query.query_id) is None


def test_recovery_stops_where_a_checkpoint_fork_has_committed_other_rows(
    query: Query, sqlite_store: SqlManifestStore, tmp_path: Path
) -> None:
    """The fork has its own store, and committed first: our commit aborted the batch. Later batches would
    hide that its rows are nowhere.
    """
    query.run(sqlite_store, query.batch(0, "theirs"), *PARTS, run_id="r1")
    with open_store(f"sqlite:///{tmp_path}/ours.db") as ours:
        ours.register_stream(query.stream, query.lake.sink().kind)
        ours.claim(query.stream, "r2")
        for number in range(2):
            ours.prepare(query.write(query.plan_of(number), [[number]], "r2").manifest, "r2")
        ours.finish(query.batch(0), ABORTED, reason="the table has it from other source offsets")

        (recovered,) = query.two_phase(ours).recovery.recover(query.stream)
        assert recovered.state is PREPARED
        assert "the earlier batch 0 was aborted" in recovered.reason
        with pytest.raises(CheckpointMismatchError, match="batch 0 was aborted and never written again"):
            query.two_phase(ours).begin(query.batch(2), lambda _: query.batch(1).digest)
        assert [record.batch.batch_id for record in ours.pending(query.stream)] == [1]


# A table that was altered -----------------------------------------------------------------------------


@pytest.mark.parametrize("next_batch", [None, 1], ids=["from the command line", "before a later batch"])
def test_a_batch_that_no_longer_fits_the_table_is_an_error_without_a_replay(
    query_by_day: Query, store: SqlManifestStore, next_batch: int | None
) -> None:
    query = query_by_day
    written = prepare_only(query, store)
    query.lake.partition_by_day()
    replay = None if next_batch is None else query.batch(next_batch)
    with pytest.raises(SchemaMismatchError, match=r"no\s+longer accepts its files"):
        query.two_phase(store).recovery.recover(query.stream, replay)
    assert query.state(store, 0) is PREPARED
    assert written.paths <= data_files(query)


def test_a_table_altered_during_the_batch_fails_it(query_by_day: Query, store: SqlManifestStore) -> None:
    query = query_by_day
    batch = query.batch(0)
    with at_point("prepare.done", query.lake.partition_by_day):
        with pytest.raises(SchemaMismatchError):
            query.run(store, batch, *PARTS, run_id="r1")
    query.run(store, batch, *PARTS, run_id="r2")
    assert query.holds(store, [-1, 1, 2, 3])


# Conflicts --------------------------------------------------------------------------------------------


def test_too_many_conflicts_leave_the_batch_prepared(query: Query, store: SqlManifestStore) -> None:
    batch = query.batch(0)
    written = query.write(query.plan(store, batch), PARTS, "r1")
    table = Mock(wraps=query.target(), commit=Mock(return_value=Conflict("taken")))
    with pytest.raises(RetryableError, match="conflicted with other writers 20 times, last: taken"):
        query.two_phase(store, table).commit(written.manifest, written.committables)
    assert table.commit.call_count == 20
    assert query.state(store, 0) is PREPARED

    query.run(store, batch, *PARTS, run_id="r2")
    assert data_files(query) == written.paths
    assert query.holds(store, [1, 2, 3])


def test_waits_between_attempts_double_up_to_a_bound_with_full_jitter() -> None:
    class Highest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0
            return b

    assert list(Retry(6, 1.0, 5.0).waits(Highest())) == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_a_stream_with_the_most_commit_attempts_allowed_waits_before_each() -> None:
    """`maxCommitAttempts` goes up to 10,000; 2 ** 1024 is no float."""
    waits = list(Retry(attempts_max=10_000).waits())
    assert len(waits) == 9_999
    assert 0 <= min(waits) <= max(waits) <= 5.0


# Abort ------------------------------------------------------------------------------------------------


def test_a_commit_that_the_store_refuses_leaves_no_files(
    query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = query.write(query.plan(store, query.batch(0)), PARTS, "r1")
    monkeypatch.setattr(store, "prepare_all", Mock(side_effect=RetryableError("the disk is full")))
    with pytest.raises(RetryableError):
        query.commit(store, written)
    assert data_files(query) == set()


def test_a_batch_in_the_table_from_other_offsets_is_aborted(
    query: Query, sqlite_store: SqlManifestStore, tmp_path: Path
) -> None:
    """It can never be committed: its query gets an error. The query that wrote the table continues."""
    batch = query.batch(0, "theirs")
    theirs = query.write(query.plan(sqlite_store, batch), [[4]], "r2")
    query.run(sqlite_store, query.batch(0, "ours"), *PARTS, run_id="r1")
    with open_store(f"sqlite:///{tmp_path}/new.db") as new:
        new.register_stream(query.stream, query.lake.sink().kind)
        with pytest.raises(CheckpointMismatchError):
            query.commit(new, theirs)
        assert query.state(new, 0) is ABORTED

        committer = query.two_phase(new)
        with pytest.raises(CheckpointMismatchError, match="batch 0 was aborted and never written again"):
            committer.begin(query.batch(1), lambda _: batch.digest)
        assert committer.begin(query.batch(1), lambda _: query.batch(0, "ours").digest) is Action.WRITE


def test_a_batch_delivered_during_recovery_is_no_loss(query: Query, store: SqlManifestStore) -> None:
    """The stream was decoupled. The delivery has rewritten the files and deleted those of the batch."""
    prepare_only(query, store)

    def delivered_meanwhile(manifest: Manifest) -> list[str]:
        assert store.finish(manifest.batch, COMMITTED, table_version=1)
        return ["missing.parquet"]

    table = Mock(wraps=query.target(), missing=delivered_meanwhile)
    (recovered,) = Recovery(store, table).recover(query.stream, replay=query.batch(1))
    assert recovered.state is COMMITTED


def test_a_skipped_batch_with_other_rows_aborts_later_batches(query: Query, store: SqlManifestStore) -> None:
    """The checkpoint was rewound to before it. Later batches follow rows that are not written."""
    prepare_only(query, store, 0, "old")
    store.claim(query.stream, "r1")
    later = query.write(query.plan_of(1), [[4]], "r1")
    store.prepare(later.manifest, "r1")
    store.deliveries.skip(query.stream, 0, "ann", "broken")
    query.run(store, query.batch(0, "new"), [3], [4], run_id="r2")
    assert query.state(store, 1) is ABORTED
    assert query.holds(store, [3, 4])


# Concurrent drivers -----------------------------------------------------------------------------------


def test_a_second_commit_of_the_same_run_deletes_nothing(query: Query, store: SqlManifestStore) -> None:
    """Its manifest is not the stored one, but the stored one names its files."""
    written = query.run(store, query.batch(0), *PARTS, run_id="r1")
    query.commit(store, Written(written[:1]))
    assert data_files(query) == written.paths
    assert query.holds(store, [1, 2, 3])


@pytest.mark.parametrize(
    "point", [p for p in STREAM_POINTS if p != "evolve.done" and not p.startswith("recover.")]
)
def test_a_concurrent_driver_at_any_point_adds_no_rows(
    query: Query, store: SqlManifestStore, point: str
) -> None:
    """A driver is paused at the point, another one commits its batch, then the first continues."""
    batch = query.batch(0)
    with at_point(point, lambda: query.run(store, batch, [1], [2], [3], run_id="r2")):
        try:
            query.run(store, batch, *PARTS, run_id="r1")
        except FencedError:
            assert point == "prepare.start"
    assert query.state(store, 0) is COMMITTED
    assert query.holds(store, [1, 2, 3])


def test_a_concurrent_commit_during_planning_is_no_mismatch(
    query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store did not have the batch, and the table is ahead now: the offsets have not changed."""
    batch, record = query.batch(0), store.record

    def other_driver_acts(stream: StreamKey, batch_id: int) -> ManifestRecord | None:
        found = record(stream, batch_id)
        monkeypatch.undo()
        query.run(store, batch, *PARTS, run_id="other")
        query.run(store, query.batch(1), [4], run_id="other")
        return found

    monkeypatch.setattr(store, "record", other_driver_acts)
    assert query.two_phase(store).begin(batch) is Action.WRITE
    written = query.write(query.plan_of(0), PARTS, "r1")
    query.commit(store, written)
    assert query.holds(store, [1, 2, 3, 4])


def test_a_superseded_driver_gets_an_error(query: Query, store: SqlManifestStore) -> None:
    """It is committed, but must not report success for a batch that the store has as aborted."""
    batch = query.batch(0, "ours")
    written = query.write(query.plan(store, batch), PARTS, "r1")
    with at_point("commit.landed", lambda: store.finish(batch, ABORTED)):
        with pytest.raises(FencedError, match="another run has aborted it"):
            query.commit(store, written)
    assert query.problems([1, 2, 3]) == []

    assert query.plan(store, batch).writers is None


# Empty batches, overwriting ---------------------------------------------------------------------------


def test_an_empty_batch_makes_no_table_commit(query: Query, store: SqlManifestStore) -> None:
    query.run(store, query.batch(0), *PARTS, run_id="r1")
    version = query.lake.version()
    query.run(store, query.batch(1), [], [], run_id="r1")
    assert query.lake.version() == version
    assert query.state(store, 1) is COMMITTED
    assert query.plan(store, query.batch(1)).writers is None


# A store that is not the newest -----------------------------------------------------------------------


def test_a_store_from_a_backup_loses_and_doubles_no_rows(
    query: Query, sqlite_store: SqlManifestStore, tmp_path: Path
) -> None:
    """The backup is from when batch 1 was pending. Batches 1 and 2 were committed since."""
    query.run(sqlite_store, query.batch(0), [0], run_id="r1")
    prepare_only(query, sqlite_store, batch_id=1)
    back_up(tmp_path / "store.db", tmp_path / "backup.db")
    query.run(sqlite_store, query.batch(1), *PARTS, run_id="r2")
    query.run(sqlite_store, query.batch(2), [4], run_id="r2")

    with open_store(f"sqlite:///{tmp_path}/backup.db") as restored:
        assert query.state(restored, 1) is PREPARED
        query.run(restored, query.batch(2), [4], run_id="r3")
        query.run(restored, query.batch(3), [5], run_id="r3")
        assert query.holds(restored, [0, 1, 2, 3, 4, 5])


def test_a_restored_store_needs_no_compacted_files(
    query: Query, sqlite_store: SqlManifestStore, tmp_path: Path
) -> None:
    """The files of the pending batch are missing, but a later token shows that it is committed."""
    prepare_only(query, sqlite_store)
    back_up(tmp_path / "store.db", tmp_path / "backup.db")
    query.run(sqlite_store, query.batch(0), *PARTS, run_id="r2")
    query.run(sqlite_store, query.batch(1), [4], run_id="r2")
    query.lake.compact()
    query.lake.vacuum()

    with open_store(f"sqlite:///{tmp_path}/backup.db") as restored:
        query.run(restored, query.batch(2), [5], run_id="r3")
        assert query.holds(restored, [1, 2, 3, 4, 5])


def back_up(database: Path, copy: Path) -> None:
    with sqlite3.connect(database) as source, sqlite3.connect(copy) as target:
        source.backup(target)


def test_a_manifest_that_vanishes_during_recovery_is_an_error(
    query: Query, store: SqlManifestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = prepare_only(query, store).batch
    monkeypatch.setattr(store, "manifest", lambda _stream, _batch_id: None)
    with pytest.raises(PenstockError, match="no manifest"):
        query.plan(store, batch)
    assert query.state(store, 0) is PREPARED


# A table that is not the one written ------------------------------------------------------------------


def test_the_first_batch_is_written_into_a_table_created_again(query: Query, store: SqlManifestStore) -> None:
    """The stream has nothing in the old table yet, so no row is missing in the new one."""
    written = prepare_only(query, store)
    query.lake.replace()
    query.run(store, written.batch, *PARTS, run_id="r2")
    assert query.holds(store, [-1, 1, 2, 3])


@pytest.mark.parametrize("action", [lambda lake: lake.replace(), lambda lake: lake.drop()])
def test_a_pending_batch_of_a_table_that_was_dropped_stays_pending(
    query: Query, store: SqlManifestStore, action: Callable[[LakeTable], None]
) -> None:
    query.run(store, query.batch(0), [0], run_id="r1")
    prepare_only(query, store, batch_id=1)
    action(query.lake)
    with pytest.raises(TableChangedError):
        query.plan(store, query.batch(1))
    assert query.state(store, 1) is PREPARED


def test_an_unmarked_removed_batch_stops_the_query(query: Query, store: SqlManifestStore) -> None:
    """Its token is still in the table: relying on the token would lose its rows."""
    query.run(store, query.batch(0), [0], run_id="r1")
    before, batch = query.lake.version(), query.batch(1)
    written = query.write(query.plan(store, batch), PARTS, "r1")
    with crash_at("commit.landed"):
        query.commit(store, written)
    query.lake.go_back(before)

    for _ in range(2):
        with pytest.raises(TableChangedError, match=r"was (restored|rolled back)"):
            query.run(store, batch, *PARTS, run_id="r2")
    assert query.state(store, 1) is PREPARED


def test_an_operator_accepts_a_rolled_back_table(iceberg_query: Query, store: SqlManifestStore) -> None:
    """The pending batch is settled without its rows, and the next ones are committed."""
    query = iceberg_query
    query.run(store, query.batch(0), [0], run_id="r1")
    before = query.lake.version()
    prepare_only(query, store, batch_id=1)
    with crash_at("commit.landed"):
        query.two_phase(store).recovery.recover(query.stream)
    query.lake.go_back(before)

    query.target().accept(query.query_id)
    query.two_phase(store).recovery.accept_pending(query.stream)
    query.run(store, query.batch(1), *PARTS, run_id="r2")
    query.run(store, query.batch(2), [4], run_id="r2")
    assert query.holds(store, [0, 4])


@pytest.mark.parametrize("point", ["recover.start", "recover.done"])
def test_a_restore_during_recovery_stops_the_query(query: Query, store: SqlManifestStore, point: str) -> None:
    """Recovery aborts the pending batch for its replay, which must not hide the gap."""
    batch = query.batch(0)
    planned = query.plan(store, batch)
    before = query.lake.version()
    query.commit(store, query.write(planned, [[0]], "r1"))
    if before == -1:  # a new Iceberg table has no snapshot to go back to
        before = query.lake.version()
        query.run(store, query.batch(1), [6], run_id="r1")
    prepare_only(query, store, batch_id=2)
    with at_point(point, lambda: query.lake.go_back(before)):
        with pytest.raises(TableChangedError, match=r"was (restored|rolled back)"):
            query.plan(store, query.batch(2))
    with pytest.raises(TableChangedError, match=r"was (restored|rolled back)"):
        query.plan(store, query.batch(2))


def test_a_rollback_is_always_noticed(query: Query, store: SqlManifestStore, tmp_path: Path) -> None:
    """The table itself shows what it has lost, and the new store has the stream for the operator."""
    query.run(store, query.batch(0), [0], run_id="r1")
    before = query.lake.version()
    query.run(store, query.batch(1), *PARTS, run_id="r1")
    query.lake.go_back(before)

    with open_store(f"sqlite:///{tmp_path}/new.db") as new:
        with pytest.raises(TableChangedError, match=r"was (restored|rolled back)"):
            query.plan(new, query.batch(2))
        assert [known.key for known in new.streams()] == [query.stream]
        now = query.write(query.plan_of(2), [[4]]).content
        new.accept_table(query.stream, now.table_id, now.table_version)
        query.target().accept(query.query_id)
        query.run(new, query.batch(2), [4], run_id="r2")
        assert query.holds(new, [0, 4])


# The documentation ------------------------------------------------------------------------------------


def test_the_documentation_has_a_row_for_each_crash_point() -> None:
    """The same names, in the same order."""
    text = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    stream, delivery = [part.split("\n\n")[0] for part in text.split("| crash point |")[1:]]
    assert tuple(re.findall(r"^\| `([\w.]+)`(?: \([\w, ]+\))? \|", stream, re.MULTILINE)) == STREAM_POINTS
    named = re.findall(r"`([\w.]+)`", "".join(row.split("|")[1] for row in delivery.splitlines()[2:]))
    assert [point for point in named if point not in STREAM_POINTS] == list(DELIVERY_POINTS)
