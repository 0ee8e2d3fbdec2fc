"""The delivery service in this process: what it delivers when, and what it survives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from tests.support.backlogs import (
    NO_SECRETS,
    QUERY,
    QUICK,
    SOON,
    DecoupledLake,
    RecordingListener,
    context_of,
    decoupled,
    serving,
    wait_until,
)
from tests.support.lakes import LAKES
from tests.support.stores import statements_of

from penstock.committers.deliveries.contract import Backlog
from penstock.committers.deliveries.results import Failed
from penstock.committers.errors import AccessRefusedError, FencedError, RetryableError
from penstock.committers.file_tables.manifest import decode
from penstock.committers.store.maintenance import WHOLE
from penstock.committers.store.sql import SqlManifestStore
from penstock.committers.store.status import StreamStatus
from penstock.datasource.destinations import paths_of, stored_table
from penstock.datasource.stored.stored_table import Cleanable
from penstock.delivery import service
from penstock.delivery.drain import drain
from penstock.delivery.lease import HeldLease
from penstock.delivery.listeners import LastError
from penstock.delivery.service import PAUSE_S, DeliveryService
from penstock.delivery.sources import remove_sources
from penstock.delivery.stream_maintenance import is_maintenance_due
from penstock.delivery.worker import StreamWorker

OTHER_QUERY = "8d9a1c2b-ffff-4f4e-9d3e-000000000002"


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DecoupledLake]:
    """Of each format, with four prepared batches that are due in a second."""
    with decoupled(tmp_path, request.param, **SOON) as lake:
        yield lake


# When -----------------------------------------------------------------------------------------------


def test_batches_that_are_old_enough_are_delivered_in_one_commit(lake: DecoupledLake) -> None:
    before, listener = lake.lake.versions(), RecordingListener()
    with serving(lake, listener):
        wait_until(lambda: lake.left == 0)
    assert lake.row_ids() == list(range(1, 9))
    assert listener.triggers == ["age"]
    assert lake.lake.versions() == before + 1


def test_batches_wait_until_they_are_due(tmp_path: Path) -> None:
    lake, listener = decoupled(tmp_path, deliverAfterBatches="5"), RecordingListener()
    with serving(lake, listener):
        wait_until(lambda: len(listener.polls) > 2)
        assert lake.left == 4
        lake.fill(1, first=4)
        wait_until(lambda: lake.left == 0)
    assert listener.triggers == ["batches"]
    lake.store.close()


def test_a_query_that_waits_gets_its_delivery_at_once(tmp_path: Path) -> None:
    lake, listener = decoupled(tmp_path, deliverAfterSeconds="3600"), RecordingListener()
    lake.store.deliveries.wait(lake.stream, datetime.now(timezone.utc))
    with serving(lake, listener):
        wait_until(lambda: lake.left == 0)
    assert listener.triggers == ["request"]
    lake.store.close()


def test_a_stream_that_is_not_decoupled_is_left_alone(tmp_path: Path) -> None:
    lake, listener = DecoupledLake(tmp_path, None, QUERY), RecordingListener()
    lake.fill(2)
    with serving(lake, listener):
        wait_until(lambda: len(listener.polls) > 2)
    assert (lake.left, set(listener.polls), listener.reports) == (2, {1}, [])
    lake.store.close()


def test_a_parked_stream_is_left_alone_until_retry(delta: DecoupledLake) -> None:
    listener = RecordingListener()
    delta.store.deliveries.park(delta.stream, "me", "table is being rebuilt")
    with serving(delta, listener):
        time.sleep(1.5)
        assert (delta.left, listener.reports) == (4, [])
        delta.store.deliveries.retry(delta.stream, "me", "")
        wait_until(lambda: delta.left == 0)


def test_nothing_is_delivered_before_spark_has_logged_it(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "commits").mkdir(parents=True)
    (checkpoint / "metadata").write_text(f'{{"id": "{QUERY}"}}')
    (checkpoint / "commits" / "1").write_text("v1\n{}")
    lake = decoupled(tmp_path, batches=0)
    lake.decouple(str(checkpoint), deliverAfterCheckpoint="true", **SOON)
    lake.fill(4)
    with serving(lake):
        wait_until(lambda: lake.left == 2)
        (checkpoint / "commits" / "3").write_text("v1\n{}")
        wait_until(lambda: lake.left == 0)
    assert len(lake.rows()) == 8
    lake.store.close()


def statements_to(act: Callable[[], object], store: SqlManifestStore) -> int:
    with statements_of(store) as said:
        act()
    return len(said)


def test_streams_without_batches_cost_no_statement(delta: DecoupledLake) -> None:
    """Neither `deliver --once` nor a poll of the delivery process."""
    context = context_of(settings=replace(QUICK, maintains=True))
    drain(delta.store, context)
    serving = DeliveryService(delta.store, context)
    serving._poll()
    counts = []
    for streams in (1, 20):
        for number in range(streams):
            delta.decouple_another(f"{number:08d}")
            key = replace(delta.stream, query_id=f"{number:08d}")
            delta.store.maintenance.note(key, WHOLE, context.clock())
        once = statements_to(lambda: drain(delta.store, context), delta.store)
        serving._read_all_at = time.monotonic()
        read_all = statements_to(serving._poll, delta.store)
        serving._read_all_at += 60
        counts.append((once, read_all, statements_to(serving._poll, delta.store)))
    assert counts[0] == counts[1]
    assert counts[1][2] == 1, "one statement finds what is due"


def test_maintenance_without_new_batches_is_hourly(delta: DecoupledLake) -> None:
    now = datetime.now(timezone.utc)
    idle = replace(delta.status, backlog=Backlog(), last=None)
    assert is_maintenance_due(idle, now)
    done = replace(idle, maintained_at=now)
    assert not is_maintenance_due(done, now + timedelta(minutes=59))
    assert is_maintenance_due(done, now + timedelta(minutes=61))
    assert is_maintenance_due(done, now - timedelta(seconds=1)), "the clock was wrong"
    assert delta.status.last is not None
    committed = replace(done, last=replace(delta.status.last, finished_at=now + timedelta(seconds=1)))
    assert is_maintenance_due(committed, now + timedelta(seconds=2))


def test_a_drain_maintains_few_of_many_idle_streams(
    delta: DecoupledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were not maintained for longest. The next run continues."""
    monkeypatch.setattr("penstock.delivery.drain.IDLE_MAINTENANCE_S", 0.0)
    maintained: list[StreamWorker] = []
    monkeypatch.setattr(StreamWorker, "_run_maintenance", lambda worker, *_: maintained.append(worker))
    delta.decouple_another("00000001")
    drained = drain(delta.store, context_of(settings=replace(QUICK, maintains=True)))
    assert [one.batches for one in drained] == [4, 0]
    assert [worker.stream.key for worker in maintained] == [delta.stream]


def test_all_streams_are_delivered_before_a_table_is_maintained(
    delta: DecoupledLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise rows of a stream wait for the maintenance of others."""
    left: list[int] = []
    with DecoupledLake(tmp_path / "other", delta.store_url, OTHER_QUERY) as other:
        other.decouple(**SOON)
        other.fill(2)
        monkeypatch.setattr(StreamWorker, "_run_maintenance", lambda *_: left.append(delta.left + other.left))
        drain(delta.store, context_of(settings=replace(QUICK, maintains=True, parallel=1)))
    assert left == [0, 0]


def test_records_are_deleted_after_their_retention(tmp_path: Path) -> None:
    lake = decoupled(tmp_path, batches=6, keepDelivered="2", compactWith="none", **SOON)
    with serving(lake, settings=replace(QUICK, maintains=True)):
        wait_until(lambda: lake.left == 0)
    drain(lake.store, context_of(settings=replace(QUICK, maintains=True)))
    assert len(lake.store.history(lake.stream, 100)) == 2
    lake.store.close()


# Under which lease ----------------------------------------------------------------------------------


def test_a_stream_that_another_process_delivers_is_taken_over_as_soon_as_its_lease_ends(
    delta: DecoupledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not earlier, and without a pause afterwards."""
    monkeypatch.setattr(service, "PAUSE_S", 60.0)
    monkeypatch.setattr(service, "IDLE_S_MAX", 60.0)
    listener = RecordingListener()
    assert delta.store.deliveries.acquire(delta.stream, "another", 2.5) is not None
    started = time.monotonic()
    with serving(delta, listener):
        wait_until(lambda: delta.left == 0, 50)
        took = time.monotonic() - started
    assert 2.4 < took < 2.5 + 30
    assert len(delta.rows()) == 8


def test_a_clock_that_was_a_year_ahead_delays_no_stream(delta: DecoupledLake) -> None:
    """It has set the lease of another process, the time of the next try, and that of the batches."""
    assert delta.store.deliveries.acquire(delta.stream, "another", 10) is not None
    with delta.store.engine.begin() as connection:
        for change in (
            "penstock_leases SET expires_at",
            "penstock_streams SET tries = 1, retry_at",
            "penstock_manifests SET prepared_at",
        ):
            connection.exec_driver_sql(f"UPDATE {change} = datetime('now', '+1 year')")
    with serving(delta):
        wait_until(lambda: delta.left == 0, 10)


def test_the_lease_is_free_when_there_is_nothing_to_do(delta: DecoupledLake) -> None:
    with serving(delta, settings=replace(QUICK, lease_s=60)):
        wait_until(lambda: delta.left == 0)
        wait_until(lambda: delta.store.deliveries.acquire(delta.stream, "another", 10) is not None, 10)


def test_streams_are_shared_on_every_database(tmp_path: Path, store_url: str) -> None:
    lake = DecoupledLake(tmp_path, store_url, QUERY)
    lake.decouple(deliverAfterBatches="2", **SOON)
    with serving(lake), serving(lake):
        for first in (0, 2, 4):
            lake.fill(2, first)
        wait_until(lambda: lake.left == 0)
    assert lake.row_ids() == list(range(1, 13))
    lake.store.close()


def test_a_held_lease_outlives_its_seconds_and_is_released_at_the_end(delta: DecoupledLake) -> None:
    deliveries = delta.store.deliveries
    lease = deliveries.acquire(delta.stream, "one", 0.6)
    assert lease is not None
    with HeldLease(deliveries, lease, 0.6) as held:
        time.sleep(1.5)
        assert deliveries.acquire(delta.stream, "two", 1) is None
        held.check()
    assert deliveries.acquire(delta.stream, "two", 1) is not None


def test_a_process_that_has_lost_the_lease_is_fenced_and_does_not_take_it_back(delta: DecoupledLake) -> None:
    deliveries = delta.store.deliveries
    lease = deliveries.acquire(delta.stream, "paused", 0.1)
    assert lease is not None
    time.sleep(0.2)
    assert deliveries.acquire(delta.stream, "two", 30) is not None
    with HeldLease(deliveries, lease, 0.3) as held:
        wait_until(lambda: held.is_lost, 5)
        with pytest.raises(FencedError, match="two holds it"):
            held.check()
    assert deliveries.acquire(delta.stream, "three", 1) is None


def test_an_attempt_without_its_lease_ends_quietly(
    delta: DecoupledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes over while this one is paused before its delivery is prepared."""
    listener, round_of = RecordingListener(), StreamWorker._round
    paused = threading.Event()

    def pause(worker: StreamWorker, held: HeldLease, trigger: str | None) -> Any:
        if not paused.is_set():
            paused.set()
            with delta.store.engine.begin() as connection:
                connection.exec_driver_sql("UPDATE penstock_leases SET holder = 'thief', fence = fence + 1")
        return round_of(worker, held, trigger)

    monkeypatch.setattr(StreamWorker, "_round", pause)
    with serving(delta, listener):
        assert paused.wait(10)
        wait_until(lambda: delta.left == 0)  # the thief never renews
    assert listener.failures == []
    assert len(delta.rows()) == 8


# With what ------------------------------------------------------------------------------------------


def test_without_spark_the_files_of_a_query_that_asks_for_it_are_rewritten_here_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning for all deliveries."""
    lake = decoupled(tmp_path, compactWith="spark", **SOON)
    with serving(lake):
        wait_until(lambda: lake.left == 0)
        lake.fill(4, first=4)
        wait_until(lambda: lake.left == 0)
    files = [delivery.files for delivery in lake.store.deliveries.recent(lake.stream, 10)]
    assert files == [2, 2]
    (warning,) = [record.message for record in caplog.records if "compactWith=spark" in record.message]
    assert "penstock deliver --spark" in warning
    lake.store.close()


def test_a_spark_that_does_not_answer_is_an_outage(delta: DecoupledLake) -> None:
    """Nothing is delivered meanwhile, the store has the error, and delivery continues once Spark answers."""
    calls, listener = iter(range(1)), RecordingListener()

    def open_spark() -> Any:
        if next(calls, None) is not None:
            raise ConnectionRefusedError("sc://nowhere")
        delta.decouple(compactWith="local", **SOON)
        raise ConnectionRefusedError("sc://nowhere")

    delta.decouple(compactWith="spark", **SOON)
    stop = threading.Event()
    context = replace(context_of(listener, stop=stop), spark=open_spark)
    thread = threading.Thread(target=DeliveryService(delta.store, context).run)
    thread.start()
    wait_until(lambda: delta.left == 0)
    stop.set()
    thread.join()
    assert [wait_s is not None for _, _, wait_s in listener.failures] == [True, True]
    assert [type(error) for _, error, _ in listener.failures] == [RetryableError, RetryableError]
    assert "sc://nowhere" in str(listener.failures[0][1])
    assert delta.row_ids() == list(range(1, 9))


# What it survives -----------------------------------------------------------------------------------


def test_a_stream_that_cannot_be_opened_does_not_stop_the_others(delta: DecoupledLake) -> None:
    """It is tried again after a pause, and the store has the error."""
    listener = RecordingListener()
    good = DecoupledLake(delta.lake.data_folder.parent / "good", delta.store_url, OTHER_QUERY)
    good.decouple(**SOON)
    good.fill(2)
    delta.decouple(noSuchOption="1")
    with serving(delta, listener):
        wait_until(lambda: good.left == 0)
        wait_until(lambda: delta.status.delivery.error != "")
    assert "noSuchOption" in delta.status.delivery.error
    assert 1 <= len(listener.failures) <= 3
    good.store.close()


def test_settings_that_cannot_be_read_are_reported_and_the_service_continues(delta: DecoupledLake) -> None:
    listener = RecordingListener()
    with delta.store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE penstock_streams SET settings = '{'")
    with serving(delta, listener) as thread:
        wait_until(lambda: bool(listener.failures))
        assert thread.is_alive()
        delta.decouple(**SOON)
        wait_until(lambda: delta.left == 0)
    assert "settings" in str(listener.failures[0][1])


def test_an_outage_of_the_store_is_waited_for(delta: DecoupledLake, monkeypatch: pytest.MonkeyPatch) -> None:
    outages, streams = iter(range(2)), SqlManifestStore.streams

    def fail(store: SqlManifestStore, **given: Any) -> Sequence[StreamStatus]:
        if next(outages, None) is not None:
            raise RetryableError("the store is away")
        return streams(store, **given)

    monkeypatch.setattr(SqlManifestStore, "streams", fail)
    changes: list[str] = []
    with serving(delta, LastError(lambda error: changes.append(str(error)))):
        wait_until(lambda: delta.left == 0)
    assert changes == ["the store is away", "the store is away", "None"]


def test_an_unexpected_error_pauses_its_stream(delta: DecoupledLake, monkeypatch: pytest.MonkeyPatch) -> None:
    listener, faults, round_of = RecordingListener(), iter(range(1)), StreamWorker._round

    def fail(worker: StreamWorker, held: HeldLease, trigger: str | None) -> Any:
        if next(faults, None) is not None:
            raise ZeroDivisionError
        return round_of(worker, held, trigger)

    monkeypatch.setattr(StreamWorker, "_round", fail)
    with serving(delta, listener):
        wait_until(lambda: delta.left == 0)
    ((_, error, wait_s),) = listener.failures
    assert (type(error), wait_s) == (ZeroDivisionError, PAUSE_S)


def test_a_batch_that_the_table_refuses_is_parked_with_its_error(tmp_path: Path) -> None:
    lake, listener = decoupled(tmp_path, deliveryTries="1", **SOON), RecordingListener()
    lake.lake.forget()
    with serving(lake, listener):
        wait_until(lambda: lake.status.delivery.parked_at is not None)
    assert listener.failures[-1][2] is None
    assert lake.status.delivery.error == str(listener.failures[-1][1])
    lake.store.close()


# Until nothing is left ------------------------------------------------------------------------------


def test_drain_waits_for_the_process_with_the_lease(delta: DecoupledLake) -> None:
    assert delta.store.deliveries.acquire(delta.stream, "another", 1) is not None
    (drained,) = drain(delta.store, context_of())
    assert (drained.batches, drained.left) == (4, 0)


def test_drain_leaves_a_parked_stream_and_reports_it(delta: DecoupledLake) -> None:
    delta.store.deliveries.park(delta.stream, "me", "why not")
    (drained,) = drain(delta.store, context_of())
    assert (drained.left, drained.is_parked, drained.deliveries) == (4, True, 0)


def test_drain_does_not_maintain_a_table_that_refuses_access(
    delta: DecoupledLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it deliver again, which a maintenance does with what is due."""
    refused = Failed(AccessRefusedError("no permission"), datetime.now(timezone.utc))
    monkeypatch.setattr(StreamWorker, "_round", lambda *_: refused)
    monkeypatch.setattr(StreamWorker, "_run_maintenance", lambda *_: pytest.fail("maintained"))
    (drained,) = drain(delta.store, context_of(settings=replace(QUICK, maintains=True)))
    assert (drained.left, str(drained.failure)) == (4, "no permission")


# What is left behind --------------------------------------------------------------------------------


def deliver(lake: DecoupledLake) -> None:
    (drained,) = drain(lake.store, context_of())
    assert drained.left == 0


def rewritten(lake: DecoupledLake) -> set[str]:
    """The files of the batches, which a compacted delivery has replaced."""
    (one,) = lake.store.deliveries.with_sources(lake.stream)
    return {path for manifest in lake.store.deliveries.sources(one) for path in paths_of(manifest)}


def remove(lake: DecoupledLake, committed_before: datetime) -> int:
    stored = stored_table(lake.status, NO_SECRETS)
    assert isinstance(stored, Cleanable)
    return remove_sources(lake.store, lake.stream, lambda: stored.cleanable(lake.store), committed_before)


LATER = datetime.now(timezone.utc) + timedelta(days=1)
EARLIER = datetime.now(timezone.utc) - timedelta(hours=1)


def test_only_files_that_were_rewritten_are_deleted_after_the_grace_period(lake: DecoupledLake) -> None:
    deliver(lake)
    sources, before = rewritten(lake), lake.on_disk()
    assert len(sources) == 8
    assert sources < before
    assert remove(lake, EARLIER) == 0
    assert lake.on_disk() == before
    assert remove(lake, LATER) == 8
    assert lake.on_disk() == before - sources
    assert lake.row_ids() == list(range(1, 9))
    assert lake.store.deliveries.with_sources(lake.stream) == []
    assert remove(lake, LATER) == 0


def test_a_rewritten_file_that_the_table_names_is_kept(lake: DecoupledLake) -> None:
    """Another writer has committed a batch: its file belongs to the table now."""
    deliver(lake)
    record = lake.store.record(lake.stream, 0)
    assert record is not None
    (one,) = lake.store.deliveries.with_sources(lake.stream)
    manifest = next(iter(lake.store.deliveries.sources(one)))
    named = set(paths_of(manifest))
    lake.query_id = OTHER_QUERY
    lake.decouple()
    lake.commit(0, decode(manifest).files)
    lake.query_id = QUERY
    assert remove(lake, LATER) == 8 - len(named)
    assert named <= lake.on_disk()
    assert len(lake.rows()) == 10


def test_nothing_is_deleted_while_the_delivery_is_not_in_the_table(lake: DecoupledLake) -> None:
    deliver(lake)
    before = lake.on_disk()
    lake.lake.forget()
    lake.planned = lake.plan()
    assert remove(lake, LATER) == 0
    assert lake.on_disk() == before
