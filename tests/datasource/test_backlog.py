"""The bound of the backlog: the query waits visibly, then fails, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from benchmarks.histories import add_backlog
from tests.support.stored_batches import STREAM, batch, fill, own
from tests.support.stores import START, HandClock, work_of

from penstock.committers.contract import ManifestState
from penstock.committers.deliveries.contract import DeliveryState
from penstock.committers.errors import RetryableError
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.planning.backlog import BacklogBound, wait_for_delivery

WIDE = BacklogBound(batches=1000, size_bytes=10**9, age_s=10**6, wait_s=600)


class Clock(HandClock):
    def __init__(self) -> None:
        super().__init__()
        self.at: dict[int, Callable[[], object]] = {}
        """Actions by the seconds since the start."""

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        self.at.pop(round(self.waited_s), lambda: None)()

    @property
    def waited_s(self) -> float:
        return (self.now - START).total_seconds()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[SqlManifestStore]:
    with open_store(f"sqlite:///{tmp_path}/store.db", clock) as opened:
        opened.register_stream(STREAM, "delta")
        opened.claim(STREAM, "r1")
        yield opened


def deliver(store: SqlManifestStore, *batch_ids: int) -> None:
    for batch_id in batch_ids:
        assert store.finish(batch(batch_id), ManifestState.COMMITTED, table_version=1)


def waiting_since(store: SqlManifestStore) -> datetime | None:
    (status,) = store.streams()
    return status.waiting_since


def wait(store: SqlManifestStore, bound: BacklogBound, clock: Clock, batch_id: int = 9) -> None:
    wait_for_delivery(store, batch(batch_id), bound, now=clock, sleep=clock.sleep)


def test_a_backlog_below_its_bound_keeps_nobody_waiting(store: SqlManifestStore, clock: Clock) -> None:
    fill(store, 3)
    wait(store, replace(WIDE, batches=4, size_bytes=3001), clock)
    assert clock.waited_s == 0


def test_a_long_backlog_is_not_added_up_for_each_batch(store: SqlManifestStore, clock: Clock) -> None:
    """Once, then only the batches since. It is added up again when that would reach the bound."""
    add_backlog(store, own(0), 10_000, START)
    bound = replace(WIDE, batches=10_003)
    steps = []
    for batch_id in (10_000, 10_001, 10_002):
        with work_of(store) as work:
            wait(store, bound, clock, batch_id)
        steps.append(work.steps)
        fill(store, 1, first=batch_id)
    assert steps[0] > 10_000
    assert max(steps[1:]) < 500
    deliver(store, *range(5))
    with work_of(store) as work:
        wait(store, bound, clock, 10_003)
    assert work.steps > 10_000
    assert clock.waited_s == 0
    deliver(store, 5)
    fill(store, 6, first=10_003)
    with pytest.raises(RetryableError, match="10,003 batches wait"):
        wait(store, replace(bound, wait_s=0), clock, 10_009)


def test_a_replay_waits_only_for_earlier_batches(store: SqlManifestStore, clock: Clock) -> None:
    """Its earlier files are missing: it counts neither itself nor later batches."""
    fill(store, 3)
    clock.advance(6)
    wait(store, replace(WIDE, batches=2, age_s=5), clock, batch_id=0)
    with pytest.raises(RetryableError, match="2 batches wait"):
        wait(store, replace(WIDE, batches=2, wait_s=0), clock, batch_id=2)


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        (replace(WIDE, batches=3), "3 batches wait (backlogBatches=3)"),
        (replace(WIDE, size_bytes=3000), "3,000 bytes wait (backlogBytes=3000)"),
        (replace(WIDE, age_s=5), "the oldest batch waits for 6 s (backlogSeconds=5)"),
    ],
)
def test_the_query_waits_visibly_until_the_backlog_shrinks(
    store: SqlManifestStore, clock: Clock, caplog: pytest.LogCaptureFixture, bound: BacklogBound, says: str
) -> None:
    fill(store, 3)
    clock.advance(6)
    since = clock.now
    waiting: list[datetime | None] = []
    clock.at = {10: lambda: waiting.append(waiting_since(store)), 50: lambda: deliver(store, 0, 1, 2)}
    wait(store, bound, clock)

    assert clock.waited_s == 50
    assert waiting == [since]
    assert waiting_since(store) is None
    logged = [record for record in caplog.records if says.split(" wait")[0].split("for")[0] in record.message]
    assert len(logged) == 2, "once, and again after 30 s"


def test_a_query_that_waits_too_long_fails_and_restarts(store: SqlManifestStore, clock: Clock) -> None:
    fill(store, 3)
    bound = replace(WIDE, batches=3, wait_s=20)
    with pytest.raises(RetryableError, match="has waited 20 s") as failed:
        wait(store, bound, clock)
    assert "3 batches wait" in str(failed.value)
    assert "penstock deliver" in str(failed.value)
    assert clock.waited_s == 20
    assert waiting_since(store) is None

    deliver(store, 0)
    wait(store, bound, clock)
    assert clock.waited_s == 20


def test_the_failure_names_the_error_of_the_deliveries(store: SqlManifestStore, clock: Clock) -> None:
    fill(store, 1)
    lease = store.deliveries.acquire(STREAM, "me", 600)
    assert lease is not None
    store.deliveries.set_state(lease, DeliveryState(tries=4, error="the column id is missing"))
    with pytest.raises(
        RetryableError, match="4 deliveries in a row have failed, the last one with: the column id"
    ):
        wait(store, replace(WIDE, batches=1, wait_s=0), clock)


def test_the_failure_names_who_parked_the_deliveries(store: SqlManifestStore, clock: Clock) -> None:
    fill(store, 1)
    store.deliveries.park(STREAM, "ann", "the table moves")
    with pytest.raises(RetryableError, match=r"parked by ann since .* the table moves") as failed:
        wait(store, replace(WIDE, batches=1, wait_s=0), clock)
    assert "penstock retry" in str(failed.value)
