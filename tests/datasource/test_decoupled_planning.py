"""Planning a decoupled stream: requests to the table, and what happens when it does not answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from tests.support.stores import HandClock

from penstock.committers.contract import Batch, Committable, ManifestRecord, StreamKey
from penstock.committers.errors import CheckpointMismatchError, RetryableError, TableChangedError
from penstock.committers.iceberg import committer
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.committers.store.status import WrittenTable
from penstock.datasource.committing import commit_batch
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink
from penstock.datasource.planning.batch_plan import CommittableMessage
from penstock.datasource.planning.decoupled_planning import with_retry
from penstock.datasource.planning.plan import plan_batch
from penstock.datasource.planning.plan_cache import REFRESH_S, PlanCache
from penstock.datasource.query import Query
from penstock.datasource.settings import register_stream
from penstock.datasource.sink import check_same_table
from penstock.delivery.stream_settings import StreamSettings
from penstock.writers.parts import PartPayload, PartPayloads

ID = pa.schema([("id", pa.int64())])


class Planner:
    """One planner process. Its background work is done at once."""

    def __init__(self, folder: Path, store: SqlManifestStore) -> None:
        self.table = folder / "table"
        self.store = store
        self.now = 0.0
        self.restart()

    def restart(self, **options: str) -> None:
        given = {"path": str(self.table), "delivery": "decoupled", "schemaEvolution": "addColumns"}
        self.sink: DeltaSink | IcebergSink = DeltaSink(
            DeltaOptions.parse({**given, "backlogWaitSeconds": "0", **options})
        )
        self.plans = PlanCache(lambda: self.now, lambda body: body())

    def run(self, batch_id: int, rows: pa.Schema = ID) -> None:
        batch = Batch(StreamKey("q", self.sink.table_uri), batch_id, f"{batch_id:064x}")
        plan = plan_batch(Query.of(self.sink), self.store, batch, rows, False, plans=self.plans)
        committable: Committable[PartPayloads] = Committable(batch, "r", 0, 0, (PartPayload(()),))
        commit_batch(Query.of(self.sink), self.store, [CommittableMessage(committable, plan.targets)])

    def pending(self, table: Path) -> Sequence[ManifestRecord]:
        return self.store.pending(StreamKey("q", str(table)))


@pytest.fixture
def planner(tmp_path: Path) -> Iterator[Planner]:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        yield Planner(tmp_path, store)


def test_a_table_that_is_dropped_meanwhile_stops_the_query_and_is_not_created_again(planner: Planner) -> None:
    planner.run(0)
    shutil.rmtree(planner.table)
    planner.run(1)
    planner.now = REFRESH_S
    planner.run(2)
    with pytest.raises(TableChangedError):
        planner.run(3)
    with pytest.raises(TableChangedError):
        planner.run(3)
    assert not planner.table.exists()


def test_a_batch_of_an_iceberg_table_is_prepared_while_the_catalog_does_not_answer(
    planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"warehouse": str(tmp_path), "table": "db.t", "delivery": "decoupled"}
    planner.sink = IcebergSink(IcebergOptions.parse(given))
    planner.run(0)
    monkeypatch.setattr(committer, "load_if_there", Mock(side_effect=RetryableError("no catalog")))
    planner.run(1)
    waiting = planner.store.pending(StreamKey("q", planner.sink.table_uri))
    assert [record.batch.batch_id for record in waiting] == [0, 1]


def test_a_store_that_was_lost_may_not_know_the_id_of_the_table(planner: Planner) -> None:
    """Requests of a driver from before the loss arrive after it, and are delivered."""
    planner.run(0)
    table, stream = planner.sink.open_table(), StreamKey("q", planner.sink.table_uri)
    check_same_table(table, stream, WrittenTable("", 0, None))
    with pytest.raises(TableChangedError, match="re-created"):
        check_same_table(table, stream, WrittenTable("another", 0, None))


def test_other_new_columns_wait_for_those_that_are_not_delivered_yet(planner: Planner) -> None:
    planner.run(0)
    first, second = (ID.append(pa.field(name, pa.string())) for name in ("first", "second"))
    planner.run(1, first)
    planner.restart()
    planner.run(2, first)
    planner.run(3)
    with pytest.raises(RetryableError, match=r"adds the column.s. first to the table .* adds second"):
        planner.run(4, second)


def test_a_query_continues_in_another_table_which_does_not_get_the_batches_before(
    planner: Planner, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost: what was prepared for the first table is still delivered to it."""
    planner.run(0)
    first, planner.table = planner.table, planner.table.with_name("other")
    planner.restart()
    with pytest.raises(CheckpointMismatchError, match=r"other is new .* batch 1.*has written to .*table\. "):
        planner.run(1)
    planner.restart(newTarget="allow")
    planner.run(1)
    planner.run(2)
    told = [one for one in caplog.messages if "is new to the query" in one]
    assert len(told) == 1
    assert [record.batch.batch_id for record in planner.pending(first)] == [0]
    assert [record.batch.batch_id for record in planner.pending(planner.table)] == [1, 2]


def test_a_lost_store_is_not_taken_for_another_table(planner: Planner, tmp_path: Path) -> None:
    planner.run(0)
    planner.restart()
    with open_store(f"sqlite:///{tmp_path}/new.db") as planner.store:
        with pytest.raises(CheckpointMismatchError, match="were lost with the store"):
            planner.run(1)


def test_a_query_that_waits_for_deliveries_is_registered_as_decoupled(planner: Planner) -> None:
    """After a failed coupled start, delivery ignores the stream."""
    planner.run(0)
    stream = StreamKey("q", planner.sink.table_uri)
    register_stream(DeltaSink(DeltaOptions.parse({"path": str(planner.table)})), planner.store, stream)
    planner.restart(backlogBatches="1")
    with pytest.raises(RetryableError, match="backlogBatches=1"):
        planner.run(1)
    assert StreamSettings.parse(planner.store.settings(stream)).is_decoupled


@pytest.mark.parametrize(("failures", "wait_s", "waited_s"), [(5, 600, 10), (100, 0, 0), (100, 6, 6)])
def test_a_restart_waits_for_an_unreachable_table(failures: int, wait_s: float, waited_s: float) -> None:
    clock = HandClock()
    began = clock.now
    call = Mock(side_effect=[*[RetryableError("down")] * failures, "up"])

    def seconds() -> float:
        return (clock.now - began).total_seconds()

    with pytest.raises(RetryableError, match="down") if waited_s == wait_s else nullcontext():
        assert with_retry(call, wait_s, clock=seconds, sleep=clock.advance) == "up"
    assert seconds() == waited_s
