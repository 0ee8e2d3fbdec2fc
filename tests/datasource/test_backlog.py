"""The bound of the backlog: the query waits where everybody sees it, then fails, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from penstock.committers.contract import (
    Batch,
    Manifest,
    ManifestState,
    StreamKey,
)
from penstock.committers.deliveries.contract import DeliveryState
from penstock.committers.errors import RetryableError
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.backlog import BacklogBound, wait_for_delivery

STREAM = StreamKey("q", "/lake/t")
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
WIDE = BacklogBound(batches=1000, size_bytes=10**9, age_s=10**6, wait_s=600)


class Clock:
    def __init__(self) -> None:
        self.now = START
        self.at: dict[int, Callable[[], object]] = {}
        """What happens once so many seconds have gone by."""

    def __call__(self) -> datetime:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        action = self.at.pop(round((self.now - START).total_seconds()), None)
        if action is not None:
            action()

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
        opened.claim(STREAM, "r")
        yield opened


def batch(batch_id: int) -> Batch:
    return Batch(STREAM, batch_id, f"{batch_id:064x}")


def prepare(store: SqlManifestStore, count: int, size_bytes: int = 100) -> None:
    for batch_id in range(count):
        store.prepare(Manifest(batch(batch_id), "delta", 1, b"x", 1, 1, size_bytes, False), "r")


def deliver(store: SqlManifestStore, *batch_ids: int) -> None:
    for batch_id in batch_ids:
        assert store.finish(batch(batch_id), ManifestState.COMMITTED, table_version=1)


def waiting_since(store: SqlManifestStore) -> datetime | None:
    (status,) = store.streams()
    return status.waiting_since


def wait(store: SqlManifestStore, bound: BacklogBound, clock: Clock, batch_id: int = 9) -> None:
    wait_for_delivery(store, batch(batch_id), bound, now=clock, sleep=clock.sleep)


def test_a_backlog_below_its_bound_keeps_nobody_waiting(store: SqlManifestStore, clock: Clock) -> None:
    prepare(store, 3)
    wait(store, replace(WIDE, batches=4, size_bytes=301), clock)
    assert clock.waited_s == 0


def test_a_batch_that_is_written_again_waits_only_for_those_before_it(
    store: SqlManifestStore, clock: Clock
) -> None:
    """What was prepared of it, and its files are gone, holds up itself and all behind it."""
    prepare(store, 3)
    clock.now += timedelta(seconds=6)
    wait(store, replace(WIDE, batches=2, age_s=5), clock, batch_id=0)
    with pytest.raises(RetryableError, match="2 batches wait"):
        wait(store, replace(WIDE, batches=2, wait_s=0), clock, batch_id=2)


@pytest.mark.parametrize(
    ("bound", "says"),
    [
        (replace(WIDE, batches=3), "3 batches wait (backlogBatches=3)"),
        (replace(WIDE, size_bytes=300), "300 bytes wait (backlogBytes=300)"),
        (replace(WIDE, age_s=5), "the oldest batch waits for 6 s (backlogSeconds=5)"),
    ],
)
def test_the_query_waits_visibly_and_goes_on_once_there_is_room(
    store: SqlManifestStore, clock: Clock, caplog: pytest.LogCaptureFixture, bound: BacklogBound, says: str
) -> None:
    prepare(store, 3)
    clock.now += timedelta(seconds=6)
    since = clock.now
    seen: list[datetime | None] = []
    clock.at = {
        10: lambda: seen.append(waiting_since(store)),
        50: lambda: deliver(store, 0, 1, 2),
    }
    wait(store, bound, clock)

    assert clock.waited_s == 50
    assert seen == [since]
    assert waiting_since(store) is None
    said = [record for record in caplog.records if says.split(" wait")[0].split("for")[0] in record.message]
    assert len(said) == 2, "once, and again after 30 s"


def test_a_query_that_has_waited_too_long_fails_and_its_restart_goes_on(
    store: SqlManifestStore, clock: Clock
) -> None:
    prepare(store, 3)
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


def test_the_failure_says_what_the_deliveries_fail_with(store: SqlManifestStore, clock: Clock) -> None:
    prepare(store, 1)
    lease = store.deliveries.acquire(STREAM, "me", 600)
    assert lease is not None
    store.deliveries.set_state(lease, DeliveryState(tries=4, error="the column id is gone"))
    with pytest.raises(
        RetryableError, match="4 deliveries in a row have failed, the last one with: the column id"
    ):
        wait(store, replace(WIDE, batches=1, wait_s=0), clock)


def test_the_failure_says_who_has_parked_the_deliveries(store: SqlManifestStore, clock: Clock) -> None:
    prepare(store, 1)
    store.deliveries.park(STREAM, "ann", "the table moves")
    with pytest.raises(RetryableError, match=r"parked by ann since .* the table moves") as failed:
        wait(store, replace(WIDE, batches=1, wait_s=0), clock)
    assert "penstock retry" in str(failed.value)
