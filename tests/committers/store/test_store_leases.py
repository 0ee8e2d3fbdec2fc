"""What the store promises about leases, on both databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.support.stored_batches import STREAM, UNKNOWN, fill, merged
from tests.support.stores import START, HandClock, Processes, holding

from penstock.committers.contract import StreamKey, Token
from penstock.committers.deliveries.contract import LEASE_S_MAX, Backlog, Delivery, DeliveryState, Lease
from penstock.committers.errors import FencedError, RetryableError
from penstock.committers.progress import Progress
from penstock.committers.store import engines
from penstock.committers.store.deliveries import SqlDeliveries
from penstock.committers.store.sql import SqlManifestStore, open_store

# Leases ---------------------------------------------------------------------------------------------


def test_a_lease_holds_until_it_expires(deliveries: SqlDeliveries, lease: Lease, clock: HandClock) -> None:
    assert lease == Lease(STREAM, "first", 1, START + timedelta(seconds=10))
    clock.advance(9.9)
    assert deliveries.acquire(STREAM, "second", 10) is None
    clock.advance(0.1)
    assert deliveries.acquire(STREAM, "second", 10) == Lease(
        STREAM, "second", 2, clock.now + timedelta(seconds=10)
    )
    assert deliveries.acquire(STREAM, "first", 10) is None


def test_a_lease_of_a_fast_clock_expires(store_url: str, deliveries: SqlDeliveries, clock: HandClock) -> None:
    ahead = HandClock()
    ahead.advance(365 * 24 * 3600)
    with open_store(store_url, ahead, lease_clock=ahead) as other:
        assert other.deliveries.acquire(STREAM, "ahead", LEASE_S_MAX) is not None
    taken = deliveries.acquire(STREAM, "second", 10)
    assert taken == Lease(STREAM, "second", 2, clock.now + timedelta(seconds=10))
    assert deliveries.acquire(STREAM, "third", 10) is None


def test_the_longest_lease_of_a_clock_slightly_ahead_holds(store_url: str, deliveries: SqlDeliveries) -> None:
    ahead = HandClock()
    ahead.advance(30)
    with open_store(store_url, ahead, lease_clock=ahead) as other:
        assert other.deliveries.acquire(STREAM, "ahead", LEASE_S_MAX) is not None
    assert deliveries.acquire(STREAM, "second", 10) is None


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [-7200, -60, 60, 7200])
def test_the_clock_of_the_database_measures_leases(
    new_postgres_url: Callable[[], str], clock: HandClock, ahead_s: float
) -> None:
    """Those of the hosts may differ."""
    url, other_clock = new_postgres_url(), HandClock()
    other_clock.advance(ahead_s)
    with open_store(url, clock) as one, open_store(url, other_clock) as other:
        one.register_stream(STREAM, "test")
        lease = one.deliveries.acquire(STREAM, "first", 60)
        assert lease is not None
        assert other.deliveries.acquire(STREAM, "second", 60) is None
        one.deliveries.renew(lease, 0)
        assert other.deliveries.acquire(STREAM, "second", 60) is not None
        assert one.deliveries.acquire(STREAM, "first", 60) is None


def test_a_renewed_lease_keeps_its_fence(deliveries: SqlDeliveries, lease: Lease, clock: HandClock) -> None:
    clock.advance(5)
    assert deliveries.acquire(STREAM, "first", 10) == replace(
        lease, expires_at=clock.now + timedelta(seconds=10)
    )
    clock.advance(9)
    renewed = deliveries.renew(lease, 10)
    assert renewed == replace(lease, expires_at=clock.now + timedelta(seconds=10))
    clock.advance(9)
    assert deliveries.acquire(STREAM, "second", 10) is None


def test_fences_only_go_up_also_after_a_release(deliveries: SqlDeliveries, clock: HandClock) -> None:
    fences = []
    for holder in ("first", "first", "second", "first"):
        held = deliveries.acquire(STREAM, holder, 10)
        assert held is not None
        fences.append(held.fence)
        deliveries.release(held)
        deliveries.release(held)
    held = deliveries.acquire(STREAM, "second", 10)
    clock.advance(11)
    taken = deliveries.acquire(STREAM, "first", 10)
    assert held is not None
    assert taken is not None
    assert [*fences, held.fence, taken.fence] == [1, 2, 3, 4, 5, 6]


UNFINISHED = Delivery(1, merged(0), "age", is_compacted=False, prepared_at=START)
USES: dict[str, Callable[[SqlManifestStore, Lease], object]] = {
    "renew": lambda store, lease: store.deliveries.renew(lease, 10),
    "prepare": lambda store, lease: store.deliveries.prepare(lease, merged(0), "age", is_compacted=False),
    "abandon": lambda store, lease: store.deliveries.abandon(lease, UNFINISHED, "why"),
    "set_state": lambda store, lease: store.deliveries.set_state(lease, DeliveryState(tries=7)),
    "progress": lambda store, lease: store.progress.write(STREAM, Progress(), Token(0, "d0"), lease=lease),
}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_a_fenced_holder_is_refused(
    store: SqlManifestStore, lease: Lease, clock: HandClock, use: Callable[[SqlManifestStore, Lease], object]
) -> None:
    fill(store, 1)
    clock.advance(11)
    newer = store.deliveries.acquire(STREAM, "second", 10)
    assert newer is not None
    with pytest.raises(FencedError, match=r"first no longer holds .*second holds it"):
        use(store, lease)
    store.deliveries.release(newer)
    again = store.deliveries.acquire(STREAM, "first", 10)  # the same name, and a fence of its own
    assert again is not None
    with pytest.raises(FencedError):
        use(store, lease)
    assert store.deliveries.unfinished(STREAM) is None
    assert store.deliveries.state(STREAM) == DeliveryState()
    assert store.progress.read(STREAM) == Progress()
    assert store.deliveries.acquire(STREAM, "third", 10) is None
    use(store, again)


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_a_released_lease_is_refused(
    store: SqlManifestStore, lease: Lease, use: Callable[[SqlManifestStore, Lease], object]
) -> None:
    fill(store, 1)
    store.deliveries.release(lease)
    with pytest.raises(FencedError, match="it was released"):
        use(store, lease)


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_an_expired_lease_that_nobody_took_still_holds(
    store: SqlManifestStore, lease: Lease, clock: HandClock, use: Callable[[SqlManifestStore, Lease], object]
) -> None:
    """For example after a pause of the process."""
    fill(store, 1)
    clock.advance(3600)
    use(store, lease)


def test_a_lost_lease_is_not_released(deliveries: SqlDeliveries, lease: Lease, clock: HandClock) -> None:
    clock.advance(11)
    assert deliveries.acquire(STREAM, "second", 10) is not None
    deliveries.release(lease)
    assert deliveries.acquire(STREAM, "third", 10) is None


@pytest.mark.parametrize("is_expired", [False, True], ids=["free", "expired"])
def test_of_two_processes_that_want_a_stream_one_gets_it(store_url: str, is_expired: bool) -> None:
    streams = [StreamKey(f"q{number}", "s3://lake/flights") for number in range(40)]
    with open_store(store_url, lease_clock=HandClock()) as store:  # long ago
        for stream in streams:
            store.register_stream(stream, "test")
            if is_expired:
                assert store.deliveries.acquire(stream, "dead", 10) is not None
    one, other = Processes(["acquire", store_url, "one"], ["acquire", store_url, "other"]).results()
    fence = 2 if is_expired else 1
    assert [{*pair} for pair in zip(one, other, strict=True)] == [{fence, None}] * len(streams)


@pytest.mark.usefixtures("lease")
def test_a_standby_waits_for_no_lock(
    store: SqlManifestStore, store_url: str, monkeypatch: pytest.MonkeyPatch, clock: HandClock
) -> None:
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_S", 0.2)
    with open_store(store_url, clock, lease_clock=clock) as standby, holding(store, STREAM):
        assert standby.deliveries.acquire(STREAM, "second", 10) is None


def test_a_stream_that_the_store_does_not_know_is_an_error(deliveries: SqlDeliveries, lease: Lease) -> None:
    stray = replace(lease, stream=UNKNOWN)
    attempts: list[Callable[[], object]] = [
        lambda: deliveries.acquire(UNKNOWN, "first", 10),
        lambda: deliveries.renew(stray, 10),
        lambda: deliveries.set_state(stray, DeliveryState()),
        lambda: deliveries.wait(UNKNOWN, START),
        lambda: deliveries.park(UNKNOWN, "ann", "why"),
    ]
    for attempt in attempts:
        with pytest.raises(RetryableError, match="does not know the stream unknown"):
            attempt()
    deliveries.release(stray)
    assert deliveries.unfinished(UNKNOWN) is None
    assert deliveries.backlog(UNKNOWN) == Backlog()
    assert deliveries.prune(UNKNOWN, START, 0) == 0
