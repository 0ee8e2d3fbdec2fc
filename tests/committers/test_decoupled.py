"""What the driver of a decoupled stream decides, with a real store and a real table.

Deliveries are made here by the two-phase committer's recovery, which takes pending batches one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.support.lakes import LAKES, LakeTable
from tests.support.query import Query, Written

from penstock.committers.contract import Batch, DataFiles, ManifestRecord, ManifestState, StreamKey, Token
from penstock.committers.errors import CheckpointMismatchError, RetryableError
from penstock.committers.protocol.decision import Action
from penstock.committers.protocol.decoupled import DecoupledCommitter
from penstock.committers.protocol.two_phase import TwoPhaseCommitter
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.committers.target import PayloadCommitter
from penstock.testing.faults import crash_at

PREPARED, COMMITTED, ABORTED = ManifestState.PREPARED, ManifestState.COMMITTED, ManifestState.ABORTED


@dataclass
class Stream:
    """One decoupled query: each step is made by another process."""

    query: Query
    store: SqlManifestStore

    def __post_init__(self) -> None:
        self.store.register_stream(self.query.stream, "delta")

    def batch(self, batch_id: int, offsets: object = "") -> Batch:
        return self.query.batch(batch_id, offsets)

    def committer(self, table: PayloadCommitter[DataFiles] | None = None) -> DecoupledCommitter[DataFiles]:
        return DecoupledCommitter(self.store, table or self.query.target())

    def coupled(self) -> TwoPhaseCommitter[DataFiles]:
        return TwoPhaseCommitter(self.store, self.query.target())

    def unreachable(self) -> DecoupledCommitter[DataFiles]:
        """A committer for a table whose catalog and storage are down."""
        down = Mock(side_effect=RetryableError("the catalog is down"))
        return self.committer(Mock(wraps=self.query.target(), token=down, missing=down))

    def begin(self, batch: Batch, cached: Token | None = None) -> Action:
        return self.committer().begin(batch, cached_token=cached)

    def write(self, batch: Batch, run_id: str, ids: list[int]) -> Written:
        return self.query.write(replace(self.query.plan_of(batch.batch_id), batch=batch), [ids], run_id)

    def prepare(self, written: Written) -> None:
        self.committer().prepare(written.manifest, written.committables)

    def run(self, batch_id: int, ids: list[int], run_id: str = "r1", offsets: object = "") -> Written:
        """A batch from its begin to its end, as Spark sees it."""
        batch = self.batch(batch_id, offsets)
        assert self.begin(batch) is Action.WRITE
        written = self.write(batch, run_id, ids)
        self.prepare(written)
        return written

    def fill(self, batches: int) -> None:
        """Run these batches from batch 0 on, each with its batch id as its only row."""
        for batch_id in range(batches):
            self.run(batch_id, [batch_id])

    def deliver(self) -> None:
        self.coupled().recovery.recover(self.query.stream)

    def states(self) -> dict[int, ManifestState]:
        return self.query.states(self.store)

    def holds(self, ids: list[int]) -> bool:
        return self.query.problems(ids) == []


@pytest.fixture
def stream(tmp_path: Path, store: SqlManifestStore) -> Stream:
    return Stream(Query(LAKES["delta"](tmp_path)), store)


@pytest.fixture(params=LAKES)
def any_stream(request: pytest.FixtureRequest, tmp_path: Path, store: SqlManifestStore) -> Stream:
    lake: LakeTable = LAKES[request.param](tmp_path)
    return Stream(Query(lake), store)


# Without failures -------------------------------------------------------------------------------------


def test_a_batch_after_one_that_the_store_knows_needs_no_table(stream: Stream) -> None:
    stream.run(0, [1])
    batch = stream.batch(1)
    assert stream.unreachable().begin(batch) is Action.WRITE
    written = stream.write(batch, "r1", [2])
    stream.unreachable().prepare(written.manifest, written.committables)
    assert stream.states() == {0: PREPARED, 1: PREPARED}


def test_the_first_batch_of_a_store_asks_the_table(stream: Stream) -> None:
    """The store may be new because the old one was lost."""
    with pytest.raises(RetryableError, match="catalog is down"):
        stream.unreachable().begin(stream.batch(0))


# Replays ----------------------------------------------------------------------------------------------


def test_a_replay_of_a_prepared_batch_is_skipped(any_stream: Stream) -> None:
    """The driver died between prepare and Spark's commits log."""
    any_stream.run(0, [1])
    assert any_stream.begin(any_stream.batch(0)) is Action.SKIP
    any_stream.committer().confirm_skipped(any_stream.batch(0))


def test_a_replay_of_a_delivered_batch_is_skipped_without_the_table(stream: Stream) -> None:
    stream.run(0, [1])
    stream.deliver()
    committer = stream.unreachable()
    assert committer.begin(stream.batch(0)) is Action.SKIP
    committer.confirm_skipped(stream.batch(0))


def test_a_delivered_batch_with_other_offsets_is_an_error(stream: Stream) -> None:
    stream.run(0, [1])
    stream.deliver()
    with pytest.raises(CheckpointMismatchError, match="committed from other source offsets"):
        stream.begin(stream.batch(0, "others"))


def test_a_replay_with_missing_files_keeps_later_batches(any_stream: Stream) -> None:
    """Spark has logged that, and would not run it again."""
    any_stream.run(0, [0])
    any_stream.query.lake.vacuum()
    any_stream.run(1, [1])
    any_stream.run(0, [0], "r2")
    assert any_stream.states() == {0: PREPARED, 1: PREPARED}
    any_stream.deliver()
    assert any_stream.holds([0, 1])


def test_a_coupled_replay_whose_files_are_gone_leaves_what_a_twin_has_logged(any_stream: Stream) -> None:
    """It slept, and dies before it has written the batch again: nothing says that its rows are nowhere."""
    any_stream.run(0, [0])
    any_stream.query.lake.vacuum()
    any_stream.run(1, [1])
    assert any_stream.coupled().begin(any_stream.batch(0)) is Action.WRITE
    assert any_stream.states() == {0: PREPARED, 1: PREPARED}
    assert any_stream.begin(any_stream.batch(2)) is Action.WRITE


def test_a_replay_with_missing_files_waits_for_its_delivery(stream: Stream) -> None:
    stream.run(0, [1])
    _start_delivery(stream)
    stream.query.lake.vacuum()
    with pytest.raises(RetryableError, match="is being delivered"):
        stream.begin(stream.batch(0))


def test_a_replay_of_a_committed_batch_whose_files_were_compacted_is_skipped(stream: Stream) -> None:
    """It is committed, but was not marked: the token of the table decides."""
    stream.run(0, [1])
    with crash_at("commit.landed"):
        stream.deliver()
    stream.query.lake.append(9)
    stream.query.lake.compact()
    stream.query.lake.vacuum()
    assert stream.states() == {0: PREPARED}

    assert stream.begin(stream.batch(0)) is Action.SKIP
    stream.deliver()
    assert stream.holds([1, 9])


def test_a_skipped_batch_that_was_given_up_meanwhile_is_an_error(stream: Stream) -> None:
    stream.run(0, [1])
    assert stream.begin(stream.batch(0)) is Action.SKIP
    stream.store.finish(stream.batch(0), ABORTED)
    with pytest.raises(RetryableError, match="neither prepared nor in the table"):
        stream.committer().confirm_skipped(stream.batch(0))


# Rewound checkpoints ----------------------------------------------------------------------------------


def test_a_rewound_checkpoint_supersedes_pending_batches(any_stream: Stream) -> None:
    any_stream.fill(4)
    any_stream.run(1, [10, 11], "r2", offsets="others")
    assert any_stream.states() == {0: PREPARED, 1: PREPARED, 2: ABORTED, 3: ABORTED}
    any_stream.run(2, [12], "r2", offsets="others")
    any_stream.deliver()
    assert any_stream.holds([0, 10, 11, 12])


def test_a_later_batch_is_never_left_waiting_behind_one_that_is_written_again(stream: Stream) -> None:
    """With its delivery, the batch before would count as committed."""
    stream.fill(3)
    stream.store.finish(stream.batch(1), ABORTED, reason="an operator skips it")
    assert stream.begin(stream.batch(1)) is Action.WRITE
    assert stream.states() == {0: PREPARED, 1: ABORTED, 2: ABORTED}


def test_a_slow_driver_aborts_nothing_of_a_concurrent_one(stream: Stream) -> None:
    """Spark may have logged what the other driver has prepared, and would not run it again."""
    record = stream.store.record

    def slow(stream_key: StreamKey, batch_id: int) -> ManifestRecord | None:
        found = record(stream_key, batch_id)
        stream.store.record = record  # type: ignore[method-assign]
        for number in range(2):
            stream.run(number, [number])
        return found

    stream.store.record = slow  # type: ignore[method-assign, assignment]
    assert stream.begin(stream.batch(0)) is Action.WRITE
    assert stream.states() == {0: PREPARED, 1: PREPARED}


def test_a_checkpoint_fork_on_one_store_is_an_error(stream: Stream) -> None:
    """The other query has prepared its rows under the batch before: these rows are nowhere."""
    stream.run(0, [0], offsets="of the copy")
    batch = stream.batch(1)
    committer = stream.committer()
    with pytest.raises(CheckpointMismatchError, match="after batch 0, which the store has from other"):
        committer.begin(batch, digest_of=lambda _: stream.batch(0).digest)
    assert committer.begin(batch, digest_of=lambda _: stream.batch(0, "of the copy").digest) is Action.WRITE
    assert committer.begin(batch, digest_of=lambda _: None) is Action.WRITE


def test_a_batch_that_an_operator_has_skipped_is_not_written_again(stream: Stream) -> None:
    """Also by the replay of a slow driver: later prepared batches must not be aborted for it."""
    stream.run(0, [0])
    stream.run(1, [1])
    stream.store.deliveries.skip(stream.query.stream, 0, "ann", "broken")
    assert stream.begin(stream.batch(0)) is Action.SKIP
    stream.committer().confirm_skipped(stream.batch(0))
    assert stream.states() == {0: ABORTED, 1: PREPARED}
    assert stream.begin(stream.batch(0, "others")) is Action.WRITE


def test_a_batch_that_was_skipped_while_a_slow_driver_wrote_it_is_not_prepared(stream: Stream) -> None:
    """It would be marked as committed with the next batch, although the table never gets its rows."""
    slow = stream.write(stream.batch(0), "r1", [0])
    stream.run(0, [0], "r2")
    stream.store.deliveries.skip(stream.query.stream, 0, "ann", "broken")
    with pytest.raises(RetryableError, match="An operator skipped batch 0"):
        stream.prepare(slow)
    assert stream.states() == {0: ABORTED}
    assert not any((stream.query.lake.data_folder / path).exists() for path in slow.paths)


def test_a_skipped_batch_stays_skipped_when_its_own_driver_asks_again(stream: Stream) -> None:
    """The response to its first request was lost."""
    written = stream.run(0, [0])
    stream.store.deliveries.skip(stream.query.stream, 0, "ann", "broken")
    with pytest.raises(RetryableError, match="An operator skipped batch 0"):
        stream.prepare(written)
    assert stream.states() == {0: ABORTED}


def test_a_checkpoint_fork_is_an_error_even_after_a_skipped_batch(stream: Stream) -> None:
    """Their later batches may have equal digests, and be taken for each other."""
    stream.run(0, [0], offsets="of the copy")
    stream.store.deliveries.skip(stream.query.stream, 0, "ann", "broken")
    with pytest.raises(CheckpointMismatchError, match="after batch 0"):
        stream.committer().begin(stream.batch(1), digest_of=lambda _: stream.batch(0).digest)


def test_a_checkpoint_fork_is_an_error_even_after_an_aborted_batch(stream: Stream) -> None:
    """The fork aborted what the query had logged, for its own rows, and an operator aborted those."""
    mine, other = stream.batch(0), stream.batch(0, "of the copy")
    stream.run(0, [0, 1])
    assert stream.begin(other) is Action.WRITE
    stream.prepare(stream.write(other, "r2", [0]))
    stream.store.deliveries.abort_pending(stream.query.stream, -1, "ann", "starts again")
    with pytest.raises(CheckpointMismatchError, match="after batch 0"):
        stream.committer().begin(stream.batch(1), digest_of=lambda _: mine.digest)
    assert stream.committer().begin(stream.batch(1), digest_of=lambda _: other.digest) is Action.WRITE


def test_a_batch_is_not_prepared_behind_one_that_was_given_up_meanwhile(stream: Stream) -> None:
    """A checkpoint fork on the same store runs the batch before again, maybe with other rows."""
    stream.run(0, [0])
    assert stream.begin(stream.batch(1)) is Action.WRITE
    written = stream.write(stream.batch(1), "r1", [1])
    assert stream.begin(stream.batch(0, "of the copy")) is Action.WRITE
    with pytest.raises(CheckpointMismatchError, match="batch 0 was aborted and never written again"):
        stream.prepare(written)
    assert stream.states() == {0: ABORTED}


def test_a_coupled_query_does_not_go_on_over_a_batch_that_waits_for_its_replay(stream: Stream) -> None:
    """The batch between them is intact, but with the token of the next both would count as committed."""
    stream.fill(2)
    stream.store.finish(stream.batch(0), ABORTED, reason="aborted for its replay")
    with pytest.raises(CheckpointMismatchError, match="batch 0 was aborted and never written again"):
        stream.coupled().begin(stream.batch(2))
    assert stream.states() == {0: ABORTED, 1: PREPARED}


def test_a_batch_is_not_prepared_behind_the_one_of_a_copy(stream: Stream) -> None:
    """While it was written, a checkpoint fork has replaced the rows of the batch before."""
    mine, other = stream.batch(0), stream.batch(0, "of the copy")
    stream.run(0, [0])
    written = stream.write(stream.batch(1), "r1", [1])
    assert stream.begin(other) is Action.WRITE
    stream.prepare(stream.write(other, "r2", [7]))
    with pytest.raises(CheckpointMismatchError, match="after batch 0"):
        stream.committer().prepare(written.manifest, written.committables, mine.digest)
    with pytest.raises(
        RetryableError, match="has other rows for, batch 0"
    ):  # if it had read the record too early
        stream.store.prepare(written.manifest, "r2", follows=mine)
    assert stream.states() == {0: PREPARED}


def test_other_rows_are_not_prepared_before_batches_that_follow_skipped_ones(stream: Stream) -> None:
    """A checkpoint fork writes batch 0 again, while the query continues after its own, skipped one."""
    mine, other = stream.batch(0), stream.batch(0, "of the copy")
    stream.run(0, [0])
    stream.store.deliveries.skip(stream.query.stream, 0, "ann", "broken")
    assert stream.begin(other) is Action.WRITE
    written = stream.write(other, "r2", [0, 1])
    stream.committer().begin(stream.batch(1), digest_of=lambda _: mine.digest)
    following = stream.write(stream.batch(1), "r1", [1])
    stream.committer().prepare(following.manifest, following.committables, mine.digest)
    with pytest.raises(RetryableError, match="has continued after batch 0"):
        stream.prepare(written)
    assert stream.states() == {0: ABORTED, 1: PREPARED}
    assert not [path for path in written.paths if (stream.query.lake.data_folder / path).exists()]


def test_a_skipped_batch_waits_for_its_replay_once_what_it_followed_is_given_up(stream: Stream) -> None:
    """A checkpoint fork writes batch 0 again. The query must not continue after its own, skipped ones."""
    stream.fill(3)
    for batch_id in range(3):
        stream.store.deliveries.skip(stream.query.stream, batch_id, "ann", "broken")
    stream.run(0, [0, 1, 2], "r2", "of the copy")
    with pytest.raises(CheckpointMismatchError, match="batch 2 was aborted and never written again"):
        stream.committer().begin(stream.batch(3), digest_of=lambda _: stream.batch(2).digest)
    stream.deliver()
    assert stream.states() == {0: COMMITTED, 1: ABORTED, 2: ABORTED}


def test_only_the_batch_with_missing_files_is_replaced(stream: Stream) -> None:
    """A slow driver writes it again. Later batches on the same rows are logged by Spark, and are kept."""
    slow = stream.write(stream.batch(0), "r2", [0])
    missing = stream.run(0, [0])
    loaded = stream.store.record(stream.query.stream, 0)
    stream.run(1, [1])
    for path in missing.paths:
        (stream.query.lake.data_folder / path).unlink()
    stream.prepare(slow)
    record = stream.store.record(stream.query.stream, 0)
    assert record is not None
    assert record.run_id == "r2"
    assert stream.states() == {0: PREPARED, 1: PREPARED}
    late = stream.write(stream.batch(0), "r3", [0])
    stream.store.claim(stream.query.stream, "r3")
    with pytest.raises(RetryableError, match="another run has just changed it"):
        stream.store.prepare(late.manifest, "r3", replacing=loaded)


def test_nothing_is_given_up_by_a_record_that_has_changed(stream: Stream) -> None:
    stream.run(0, [0])
    loaded = stream.store.record(stream.query.stream, 0)
    assert loaded is not None
    stream.store.set_reason(loaded.batch, "changed")
    assert not stream.store.abort_from(loaded, "rewound")
    assert stream.states() == {0: PREPARED}


def test_a_batch_whose_predecessor_was_lost_with_the_store_is_not_prepared(stream: Stream) -> None:
    """The store was lost after the batch was planned: its delivery would hide that the other is missing."""
    stream.run(0, [0])
    written = stream.write(stream.batch(1), "r1", [1])
    with stream.store.engine.begin() as connection:
        for table in ("penstock_manifest_contents", "penstock_manifests"):
            connection.exec_driver_sql(f"DELETE FROM {table}")
    with pytest.raises(RetryableError, match="replaced while batch 1 was written"):
        stream.prepare(written)
    assert stream.states() == {}


def test_a_batch_that_is_being_delivered_cannot_be_superseded(stream: Stream) -> None:
    stream.fill(2)
    _start_delivery(stream)
    with pytest.raises(RetryableError, match="is being delivered"):
        stream.begin(stream.batch(1, "others"))
    assert stream.states() == {0: PREPARED, 1: PREPARED}


def _start_delivery(stream: Stream) -> None:
    """A delivery process has taken all that waits, and dies before its commit."""
    from penstock.committers.file_tables.merge import merge

    deliveries, key = stream.store.deliveries, stream.query.stream
    lease = deliveries.acquire(key, "somebody", 60)
    assert lease is not None
    manifests = [stream.store.manifest(key, record.batch.batch_id) for record in deliveries.deliverable(key)]
    merged = merge([manifest for manifest in manifests if manifest is not None])
    deliveries.prepare(lease, merged, "age", is_compacted=False)


def test_a_committed_batch_that_is_not_marked_is_not_superseded(stream: Stream) -> None:
    stream.run(0, [1])
    with crash_at("commit.landed"):
        stream.deliver()
    with pytest.raises(CheckpointMismatchError, match="in the table from other source offsets"):
        stream.begin(stream.batch(0, "others"))
    assert stream.states() == {0: PREPARED}


def test_a_checkpoint_fork_after_an_aborted_batch_is_an_error(stream: Stream) -> None:
    """One fork has aborted batch 1 to write it again, and died. The other one is at batch 2."""
    stream.run(0, [0])
    stream.run(1, [1])
    stream.begin(stream.batch(1, "others"))
    record = stream.store.record(stream.query.stream, 1)
    assert record is not None
    assert record.awaits_replay
    with pytest.raises(CheckpointMismatchError, match="batch 1 was aborted and never written again"):
        stream.begin(stream.batch(2))


def test_a_batch_is_not_prepared_behind_one_that_the_store_has_given_up_though_the_table_has_it(
    stream: Stream, tmp_path: Path
) -> None:
    """A checkpoint fork was too late with other rows. A delivery would wait for them forever."""
    written = stream.run(0, [0])
    stream.deliver()
    other = stream.batch(0, "of the copy")
    with open_store(f"sqlite:///{tmp_path}/other.db") as store:
        late = Stream(stream.query, store)
        store.claim(stream.query.stream, "r2")
        store.prepare(stream.write(other, "r2", [7]).manifest, "r2")
        with pytest.raises(CheckpointMismatchError, match="in the table from other source offsets"):
            late.deliver()
        store.finish(other, ABORTED, reason="the table has it from other source offsets")

        before = written.batch.digest
        for committer, is_refused in ((late.committer(), True), (late.coupled(), False)):
            with pytest.raises(CheckpointMismatchError) if is_refused else nullcontext():
                committer.begin(stream.batch(1), lambda _: before)
        following = stream.write(stream.batch(1), "r1", [1])
        with pytest.raises(CheckpointMismatchError, match="batch 0 was aborted and never written again"):
            late.committer().prepare(following.manifest, following.committables, before)
        assert late.states() == {0: ABORTED}

        late.coupled().begin(stream.batch(1), lambda _: before)
        store.prepare(following.manifest, "r2")  # by a coupled start
        with pytest.raises(CheckpointMismatchError, match="start the query once with delivery=coupled"):
            late.committer().begin(stream.batch(1), lambda _: before)


def test_a_skipped_batch_hides_none_that_was_given_up(stream: Stream) -> None:
    stream.fill(3)
    assert stream.store.finish(stream.batch(1), ABORTED, reason="it can never be committed")
    stream.store.deliveries.skip(stream.query.stream, 2, "ann", "broken")
    with pytest.raises(CheckpointMismatchError, match="batch 1 was aborted and never written again"):
        stream.begin(stream.batch(3))


# A store that was lost or put back --------------------------------------------------------------------


@pytest.fixture
def without_store(stream: Stream, tmp_path: Path) -> Iterator[Stream]:
    """The same query after its store was lost."""
    with open_store(f"sqlite:///{tmp_path}/other.db") as other:
        yield Stream(stream.query, other)


@pytest.mark.parametrize("delivered", [True, False])
def test_losing_undelivered_batches_is_an_error(
    stream: Stream, without_store: Stream, delivered: bool
) -> None:
    stream.run(0, [0])
    if delivered:
        stream.deliver()
    stream.run(1, [1])
    with pytest.raises(CheckpointMismatchError, match="were lost with the store") as refused:
        without_store.begin(without_store.batch(2))
    assert "delivery=coupled" in str(refused.value)


def test_a_checkpoint_fork_is_reported_before_lost_batches(stream: Stream, without_store: Stream) -> None:
    """A coupled start, as the other error recommends, would write its rows twice."""
    stream.run(0, [0], offsets="of the copy")
    stream.deliver()
    with pytest.raises(CheckpointMismatchError, match="after batch 0, which the table has from other"):
        without_store.committer().begin(
            without_store.batch(2), lambda batch_id: stream.batch(batch_id).digest
        )


def test_a_lost_store_without_pending_batches_loses_nothing(stream: Stream, without_store: Stream) -> None:
    stream.run(0, [0])
    stream.run(1, [1])
    stream.deliver()
    assert without_store.begin(without_store.batch(1)) is Action.SKIP
    without_store.committer().confirm_skipped(without_store.batch(1))
    without_store.run(2, [2])
    without_store.deliver()
    assert stream.holds([0, 1, 2])


def test_a_batch_behind_the_token_is_an_error_even_if_the_store_knows_it(
    stream: Stream, without_store: Stream
) -> None:
    """Checkpoint and store were restored from one backup, and the table has later batches."""
    stream.fill(3)
    stream.deliver()
    without_store.store.claim(stream.query.stream, "r0")
    written = without_store.write(without_store.batch(0), "r0", [0])
    without_store.prepare(written)

    token = stream.query.target().token(stream.query.query_id)
    with pytest.raises(CheckpointMismatchError, match="behind the table, which already has batch 2"):
        without_store.begin(without_store.batch(1, "others"), token)
    assert without_store.begin(without_store.batch(2), token) is Action.SKIP


# Concurrent drivers, and late responses ---------------------------------------------------------------


def test_the_first_prepared_batch_wins_and_the_files_of_the_other_are_deleted(stream: Stream) -> None:
    batch = stream.batch(0)
    assert stream.begin(batch) is Action.WRITE
    ours = stream.write(batch, "r2", [1])
    stream.prepare(stream.write(batch, "r1", [1]))
    stream.prepare(ours)
    assert not any((stream.query.lake.data_folder / path).exists() for path in ours.paths)
    stream.deliver()
    assert stream.holds([1])
