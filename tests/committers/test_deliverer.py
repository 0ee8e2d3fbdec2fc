"""What delivering promises, with a real store and a real table of each format: one table commit for many
batches, each row once, with crashes, pauses and concurrent processes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from tests.support.lakes import LAKES, LakeTable, rows
from tests.support.query import Ids, Query, Written
from tests.support.stores import HandClock

from penstock import testing
from penstock.committers.contract import (
    AlreadyCommitted,
    Committed,
    DataFiles,
    Manifest,
    ManifestState,
    Outcome,
)
from penstock.committers.deliveries.contract import Lease, check_none_committed
from penstock.committers.deliveries.deliverer import Compactor, StreamDelivery
from penstock.committers.deliveries.policy import CLOCK_DIFFERENCE_S_MAX, DeliveryPolicy
from penstock.committers.deliveries.results import Delivered, Failed, Round
from penstock.committers.errors import (
    CheckpointMismatchError,
    CommitStateUnknownError,
    ConfigurationError,
    FencedError,
    PenstockError,
    RetryableError,
    SchemaMismatchError,
    TableChangedError,
)
from penstock.committers.file_tables.manifest import build_manifest, decode, decode_measured
from penstock.committers.file_tables.merge import merge
from penstock.committers.file_tables.merged_batches import merged_note, recorded_digest
from penstock.committers.protocol.commit_runner import Retry
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.committers.target import CheckToken, PayloadCommitter
from penstock.datasource.file_table import FileTable
from penstock.datasource.sink import check_same_table
from penstock.testing.faults import at_point, crash_at

PREPARED, COMMITTED, ABORTED = ManifestState.PREPARED, ManifestState.COMMITTED, ManifestState.ABORTED
SETTINGS = '{"delivery": "decoupled"}'


@dataclass
class Stream:
    """A decoupled stream whose driver only prepares, and the processes that deliver it."""

    query: Query
    store: SqlManifestStore
    clock: HandClock
    policy: DeliveryPolicy = field(default_factory=DeliveryPolicy)

    def prepare(
        self, batch_id: int, ids: Ids, offsets: object = "", *, evolve: bool = False, run_id: str = "r1"
    ) -> Written:
        """Plan, write and prepare a batch, as the driver does."""
        query = self.query.evolving if evolve else self.query
        written = query.write(query.plan_of(batch_id, offsets), [ids], run_id)
        table_id = written.content.table_id
        self.store.register_stream(query.stream, query.sink().kind, "", table_id, SETTINGS)
        self.store.claim(query.stream, run_id)
        self.store.prepare(written.manifest, run_id)
        return written

    def fill(self, batches: int) -> None:
        """Prepare these batches from batch 0 on, each with its batch id as its only row."""
        for batch_id in range(batches):
            self.prepare(batch_id, [batch_id])

    def delivery(
        self,
        table: PayloadCommitter[DataFiles] | None = None,
        compact: Compactor | None = None,
        **others: Any,
    ) -> StreamDelivery:
        """One round of a delivery process, without waits."""
        opened = self.query.target()
        written = self.store.written_table(self.query.stream)
        return StreamDelivery(
            self.query.stream,
            self.store,
            self.store.deliveries,
            table or opened,
            self.policy,
            compact=compact,
            check=lambda: check_same_table(opened, self.query.stream, written),
            verified_version=lambda: None if written is None else written.table_version,
            commit_retry=Retry(attempts_max=3),
            clock=self.clock,
            sleep=lambda _seconds: None,
            rng=random.Random(1),
            **others,
        )

    def lease(self, holder: str = "one") -> Lease:
        lease = self.store.deliveries.acquire(self.query.stream, holder, 10)
        assert lease is not None
        return lease

    def deliver(self, trigger: str | None = "drain", **given: Any) -> Round:
        return self.delivery(**given).round(self.lease(), trigger)

    def deliver_all(self) -> list[Delivered]:
        """Deliver until no batch is pending, whatever fails."""
        delivered = []
        for _ in range(20):
            self.clock.advance(60)
            ended = self.deliver()
            if isinstance(ended, Delivered):
                delivered.append(ended)
            if not self.store.pending(self.query.stream):
                return delivered
        raise AssertionError(f"still pending: {self.store.deliveries.state(self.query.stream)}")

    def states(self) -> dict[int, ManifestState]:
        return self.query.states(self.store)

    def commits(self) -> int:
        """Table commits that have added files."""
        return len(testing.check(self.query.lake, "(SELECT 1 AS id WHERE false)").tokens)

    def holds(self, ids: Ids) -> bool:
        return self.query.holds(self.store, ids)


@pytest.fixture
def store(store_url: str, clock: HandClock) -> Iterator[SqlManifestStore]:
    with open_store(store_url, clock, lease_clock=clock) as opened:
        yield opened


@pytest.fixture
def stream(lake: LakeTable, store: SqlManifestStore, clock: HandClock) -> Stream:
    return Stream(Query(lake), store, clock)


@pytest.fixture
def delta_stream(tmp_path: Path, store: SqlManifestStore, clock: HandClock) -> Stream:
    return Stream(Query(LAKES["delta"](tmp_path)), store, clock)


# Merging ----------------------------------------------------------------------------------------------


def test_nothing_is_delivered_before_it_is_due(stream: Stream) -> None:
    stream.prepare(0, [1])
    assert stream.deliver(trigger=None) is None
    stream.clock.advance(stream.policy.after_s)
    ended = stream.deliver(trigger=None)
    assert isinstance(ended, Delivered)
    assert ended.delivery.trigger == "age"


YEAR_S = 365 * 24 * 3600.0


def test_batches_prepared_with_a_clock_that_was_far_ahead_are_due(delta_stream: Stream) -> None:
    delta_stream.clock.advance(YEAR_S)
    delta_stream.prepare(0, [1])
    delta_stream.clock.advance(-YEAR_S)
    assert isinstance(delta_stream.deliver(trigger=None), Delivered)


def test_a_driver_whose_clock_is_slightly_ahead_delays_its_deliveries(delta_stream: Stream) -> None:
    delta_stream.policy = DeliveryPolicy(after_s=5)
    delta_stream.clock.advance(CLOCK_DIFFERENCE_S_MAX)
    delta_stream.prepare(0, [1])
    delta_stream.clock.advance(-CLOCK_DIFFERENCE_S_MAX)
    assert delta_stream.deliver(trigger=None) is None


def test_a_wait_that_a_clock_far_ahead_has_set_is_over(delta_stream: Stream) -> None:
    stream = delta_stream
    stream.prepare(0, [1])
    stream.clock.advance(YEAR_S)
    table = refusing(stream.query.target(), 0, CommitStateUnknownError("the request was lost"))
    assert isinstance(stream.deliver(trigger=None, table=table), Failed)
    assert stream.deliver(trigger=None) is None
    stream.clock.advance(-YEAR_S)
    assert isinstance(stream.deliver(trigger=None), Delivered)


@pytest.mark.parametrize(
    ("policy", "trigger"), [({"after_batches": 2}, "batches"), ({"after_bytes": 1}, "bytes")]
)
def test_why_a_delivery_was_made_is_recorded(stream: Stream, policy: dict[str, int], trigger: str) -> None:
    stream.policy = DeliveryPolicy(**policy)  # type: ignore[arg-type]
    stream.prepare(0, [1])
    stream.prepare(1, [2])
    ended = stream.deliver(trigger=None)
    assert isinstance(ended, Delivered)
    assert ended.delivery.trigger == trigger


def test_a_schema_change_in_the_middle_of_a_backlog_ends_a_delivery(stream: Stream) -> None:
    stream.prepare(0, [0])
    stream.prepare(1, [1])
    wider = replace(stream.query, schema=pa.schema([*stream.query.schema, ("note", pa.string())]))
    after = replace(stream, query=wider)
    after.prepare(2, [2], evolve=True)
    after.prepare(3, [3], evolve=True)

    first, second = stream.deliver_all()
    assert [len(one.delivery.manifest.merged) for one in (first, second)] == [2, 2]
    assert [one.source_files for one in (first, second)] == [2, 2]
    assert stream.holds(range(4))
    assert rows(stream.query.lake, "id, note") == [(n, None) for n in range(4)]


def test_large_manifests_are_delivered_in_parts(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = [stream.prepare(batch_id, [batch_id]).manifest for batch_id in range(5)]
    _, one = decode_measured(manifests[0])
    monkeypatch.setattr("penstock.committers.file_tables.merge.BYTES_MAX", int(2.5 * one))
    assert [len(delivered.delivery.manifest.merged) for delivered in stream.deliver_all()] == [2, 2, 1]
    assert stream.holds(range(5))


def test_unmergeable_batches_are_delivered_alone(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.fill(3)
    monkeypatch.setattr("penstock.committers.file_tables.manifest.FILES_MAX", 1)
    failed = stream.deliver()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ConfigurationError)
    assert [len(delivered.delivery.manifest.merged) for delivered in stream.deliver_all()] == [1, 1, 1]
    assert stream.holds(range(3))


def test_a_target_that_cannot_merge_gets_each_batch_in_its_own_commit_at_once(stream: Stream) -> None:
    stream.fill(3)
    ended = []
    for _ in range(3):
        target = stream.query.target()
        table: Any = SimpleNamespace(token=target.token, missing=target.missing, commit=target.commit)
        ended.append(stream.deliver(trigger=None, table=table))

    assert all(isinstance(one, Delivered) for one in ended)
    assert set(stream.states().values()) == {COMMITTED}
    assert stream.commits() == 3
    assert stream.holds(range(3))


def test_empty_batches_are_delivered_without_a_table_commit(stream: Stream) -> None:
    stream.prepare(0, [])
    stream.prepare(1, [])
    ended = stream.deliver()
    assert isinstance(ended, Delivered)
    assert ended.outcome == AlreadyCommitted()
    assert set(stream.states().values()) == {COMMITTED}


def test_the_tables_history_names_each_merged_batch_with_its_digest(stream: Stream) -> None:
    manifests = [stream.prepare(batch_id, [batch_id]).manifest for batch_id in (7, 8, 9)]
    note = merged_note(merge(manifests))
    assert [recorded_digest(note, one) for one in (7, 8, 9, 1)] == [
        *(manifest.batch.digest[:16] for manifest in manifests),
        None,
    ]


# Crashes ----------------------------------------------------------------------------------------------


def test_a_request_in_flight_that_is_executed_first_is_found(stream: Stream) -> None:
    """The next process delivers a part of what is already committed."""
    stream.fill(3)
    target = stream.query.target()

    def lose_response(*given: Any) -> None:
        target.commit(*given)
        raise CommitStateUnknownError("the response was lost")

    assert isinstance(stream.deliver(table=Mock(spec=target, wraps=target, commit=lose_response)), Failed)
    unfinished = stream.store.deliveries.unfinished(stream.query.stream)
    assert unfinished is not None
    stream.store.deliveries.abandon(stream.lease(), unfinished, "by the test")
    stream.prepare(3, [3])

    stream.deliver_all()
    assert set(stream.states().values()) == {COMMITTED}
    assert stream.holds(range(4))


# Several processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["deliver.start", "deliver.prepared", "commit.start", "commit.landed"])
def test_a_process_that_was_taken_over_adds_nothing(stream: Stream, point: str) -> None:
    stream.fill(3)

    def take_over() -> None:
        stream.clock.advance(60)
        stream.prepare(3, [3])
        lease = stream.lease("two")
        for _ in range(3):
            stream.delivery().round(lease, "drain")

    with at_point(point, take_over):
        with suppress(FencedError):
            stream.deliver()
    stream.deliver_all()
    assert stream.holds(range(4))


def test_a_delivery_of_which_the_table_holds_a_part_is_refused(stream: Stream) -> None:
    """Without this check, batch 0 would be added again with the later ones."""
    manifests = [stream.prepare(batch_id, [batch_id]).manifest for batch_id in range(3)]
    table = stream.query.target()
    assert isinstance(table.commit(manifests[0]), Committed)
    with pytest.raises(FencedError, match="has batches up to 0"):
        stream.query.target().commit(merge(manifests))
    token = table.token("q1")
    assert token is not None
    with pytest.raises(FencedError):
        check_none_committed(merge(manifests), token, "t")


def test_a_delivery_of_which_another_process_has_committed_a_part_is_abandoned(stream: Stream) -> None:
    """The next one has the batches that are left."""
    manifests = [stream.prepare(batch_id, [batch_id]).manifest for batch_id in range(3)]
    with crash_at("deliver.prepared"):
        stream.deliver()
    assert isinstance(stream.query.target().commit(manifests[0]), Committed)
    assert isinstance(stream.deliver(), Failed)
    stream.clock.advance(100)
    stream.deliver_all()
    assert stream.holds([0, 1, 2])


# Failing ----------------------------------------------------------------------------------------------


def refusing(table: FileTable, batch_id: int, error: PenstockError) -> Any:
    """The table, whose `commit` raises the error for this batch."""

    def commit(manifest: Manifest, check_token: CheckToken) -> Outcome:
        if any(batch.batch_id == batch_id for batch in manifest.batches):
            raise error
        return table.commit(manifest, check_token)

    return Mock(spec=table, wraps=table, commit=commit)


def test_a_batch_that_the_table_refuses_is_parked_after_those_before_it_are_delivered(stream: Stream) -> None:
    stream.fill(4)
    error = SchemaMismatchError("does not fit")
    for _ in range(stream.policy.tries_max + 4):
        stream.clock.advance(100)
        stream.deliver(table=refusing(stream.query.target(), 2, error))

    assert stream.states() == {0: COMMITTED, 1: COMMITTED, 2: PREPARED, 3: PREPARED}
    state = stream.store.deliveries.state(stream.query.stream)
    assert state.parked_at is not None
    assert state.tries == stream.policy.tries_max
    assert "does not fit" in state.error

    stream.store.deliveries.retry(stream.query.stream, "tester", "the table takes it now")
    stream.deliver_all()
    assert stream.holds(range(4))


def test_an_outage_is_tried_again_for_as_long_as_it_takes(stream: Stream) -> None:
    stream.prepare(0, [0])
    down = RetryableError("the catalog is down")
    for _ in range(3 * stream.policy.tries_max):
        stream.clock.advance(100)
        assert isinstance(stream.deliver(table=refusing(stream.query.target(), 0, down)), Failed)
    state = stream.store.deliveries.state(stream.query.stream)
    assert state.parked_at is None
    assert state.retry_at is not None
    assert state.retry_at - stream.clock.now <= timedelta(seconds=stream.policy.retry_s_max)

    stream.deliver_all()
    assert stream.store.deliveries.state(stream.query.stream).error == ""
    assert stream.holds([0])


def test_a_back_off_is_waited_for(stream: Stream) -> None:
    stream.prepare(0, [0])
    stream.clock.advance(100)
    stream.deliver(trigger=None, table=refusing(stream.query.target(), 0, RetryableError("down")))
    assert stream.deliver(trigger=None) is None
    stream.clock.advance(2 * stream.policy.retry_s)
    assert isinstance(stream.deliver(trigger=None), Delivered)


def test_a_skipped_batch_is_left_out_and_later_ones_are_delivered(stream: Stream) -> None:
    stream.fill(3)
    assert stream.store.deliveries.skip(stream.query.stream, 1, "tester", "spoilt")
    stream.deliver_all()
    assert stream.states() == {0: COMMITTED, 1: ABORTED, 2: COMMITTED}
    assert stream.holds([0, 2])


def test_a_batch_that_awaits_its_replay_holds_back_later_ones(stream: Stream) -> None:
    """With the token of a later one, the replay would count as committed."""
    stream.fill(3)
    stream.store.finish(stream.query.batch(1), ABORTED, reason="superseded")
    ended = stream.deliver()
    assert isinstance(ended, Delivered)
    assert [batch.batch_id for batch in ended.delivery.manifest.batches] == [0]
    assert stream.deliver() is None

    stream.prepare(1, [10], run_id="r2")
    stream.deliver_all()
    assert stream.holds([0, 10, 2])


def test_missing_files_stop_the_delivery_with_a_remedy(stream: Stream) -> None:
    written = stream.prepare(0, [0])
    stream.prepare(1, [1])
    stream.query.target().discard([written.files])
    for _ in range(stream.policy.tries_max + 2):
        stream.clock.advance(100)
        ended = stream.deliver()
    state = stream.store.deliveries.state(stream.query.stream)
    assert ended is None
    assert state.parked_at is not None
    assert "penstock skip" in state.error
    assert stream.commits() == 0

    stream.store.deliveries.skip(stream.query.stream, 0, "tester", "files are missing")
    stream.store.deliveries.retry(stream.query.stream, "tester", "goes on without")
    stream.deliver_all()
    assert stream.holds([1])


def test_a_missing_compacted_file_is_made_again_from_the_sources(stream: Stream) -> None:
    """The delivery was prepared, its process died, and somebody has deleted its files."""
    stream.fill(3)

    def compact(manifest: Manifest, run_id: str) -> Manifest:
        content = decode(manifest)
        paths = [replace(file, path=f"missing-{n}.parquet") for n, file in enumerate(content.files)]
        again = build_manifest(manifest.batch, content.with_files(paths))
        return replace(again, merged=manifest.merged)

    with crash_at("deliver.prepared"):
        stream.deliver(compact=compact)
    unfinished = stream.store.deliveries.unfinished(stream.query.stream)
    assert unfinished is not None
    assert unfinished.is_compacted

    stream.deliver_all()
    assert stream.holds(range(3))


# The table --------------------------------------------------------------------------------------------


def test_a_restored_table_is_not_written_until_an_operator_accepts_it(stream: Stream) -> None:
    stream.prepare(0, [0])
    stream.deliver_all()
    before = stream.query.lake.version()
    stream.prepare(1, [1])
    stream.deliver_all()
    stream.prepare(2, [2])
    stream.query.lake.go_back(before)
    stream.clock.advance(100)
    ended = stream.deliver()
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, TableChangedError)
    assert stream.states()[2] is PREPARED

    written = stream.store.written_table(stream.query.stream)
    assert written is not None
    stream.store.accept_table(stream.query.stream, written.table_id, stream.query.lake.version())
    stream.query.target().accept(stream.query.query_id)
    stream.deliver_all()
    assert stream.holds([0, 2])


def test_an_unfinished_delivery_with_missing_files_is_abandoned(stream: Stream) -> None:
    """It was not rewritten: the files of the batches are missing too, and an operator has to decide."""
    written = stream.prepare(0, [0])
    with crash_at("deliver.prepared"):
        stream.deliver()
    stream.query.target().discard([written.files])
    ended = stream.deliver()
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, TableChangedError)
    assert stream.commits() == 0


@pytest.mark.parametrize("is_unfinished", [False, True])
def test_a_delivery_into_a_table_that_was_replaced_is_parked(stream: Stream, is_unfinished: bool) -> None:
    stream.prepare(0, [0])
    stream.deliver_all()
    stream.prepare(1, [1])
    if is_unfinished:
        with crash_at("deliver.prepared"):
            stream.deliver()
    stream.query.lake.replace()
    for _ in range(stream.policy.tries_max + 2):
        stream.clock.advance(100)
        stream.deliver()
    assert stream.store.deliveries.state(stream.query.stream).parked_at is not None
    assert stream.store.deliveries.unfinished(stream.query.stream) is None
    assert stream.states()[1] is PREPARED


def test_a_batch_of_a_copied_checkpoint_is_refused_by_its_digest(stream: Stream, tmp_path: Path) -> None:
    """The original has merged that batch id, with other offsets, into a delivery with later ones."""
    with open_store(f"sqlite:///{tmp_path}/copy.db", stream.clock) as copied:
        copy = replace(stream, store=copied)
        copy.prepare(1, [100], offsets="of the copy", run_id="c1")
        for batch_id in range(3):
            stream.prepare(batch_id, [batch_id])
        stream.deliver_all()

        copy.clock.advance(100)
        ended = copy.deliver()
        assert isinstance(ended, Failed)
        assert isinstance(ended.error, CheckpointMismatchError)
        assert copy.states() == {1: PREPARED}
    assert stream.holds(range(3))


def test_a_token_that_the_store_has_never_heard_of_marks_nothing(stream: Stream, tmp_path: Path) -> None:
    """A copy of checkpoint and store has delivered more, and the history of the table is missing."""
    with open_store(f"sqlite:///{tmp_path}/copy.db", stream.clock) as copied:
        copy = replace(stream, store=copied)
        for batch_id in range(3):
            copy.prepare(batch_id, [batch_id], offsets="of the copy", run_id="c1")
        copy.deliver(trigger="drain")
    stream.prepare(1, [100])
    ended = stream.deliver(table=without_history(stream.query.target()))
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, RetryableError)
    assert stream.states() == {1: PREPARED}

    stream.prepare(2, [101])
    ended = stream.deliver(table=without_history(stream.query.target()))
    assert isinstance(ended, Failed)
    assert isinstance(ended.error, CheckpointMismatchError)
    assert stream.states() == {1: PREPARED, 2: PREPARED}


def without_history(table: FileTable) -> Any:
    """The table without its history: of an earlier batch it knows only that the token is later."""

    def commit(manifest: Manifest, check_token: CheckToken) -> Outcome:
        token = table.token(manifest.batch.stream.query_id)
        is_past = token is not None and token.batch_id > manifest.batch.batch_id
        return AlreadyCommitted() if is_past else table.commit(manifest, check_token)

    return Mock(spec=table, wraps=table, commit=commit)


def test_only_batches_that_spark_has_logged_are_delivered_if_asked(stream: Stream) -> None:
    stream.policy = DeliveryPolicy(after_checkpoint=True)
    stream.fill(3)
    ended = stream.deliver(last_checkpointed=lambda: 1)
    assert isinstance(ended, Delivered)
    assert stream.states() == {0: COMMITTED, 1: COMMITTED, 2: PREPARED}
    assert stream.deliver(last_checkpointed=lambda: 1) is None
