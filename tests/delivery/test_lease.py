"""A delivery that hangs: its lease ends, another process takes over, and its own process can be ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import replace
from unittest.mock import Mock

import pytest
from tests.support.backlogs import QUICK, SOON, DecoupledLake, serving, wait_until

from penstock.committers.deliveries.contract import DeliveryStore, Lease
from penstock.committers.errors import FencedError
from penstock.delivery import lease as lease_module
from penstock.delivery.lease import HeldLease
from penstock.delivery.worker import StreamWorker

STALL_S = 60.0
OTHER_QUERY = "8d9a1c2b-ffff-4f4e-9d3e-000000000002"


class Renewals:
    """Waits for the renewals of a lease."""

    def __init__(self, deliveries: DeliveryStore) -> None:
        self._deliveries = deliveries
        self._more = threading.Semaphore(0)

    def renew(self, lease: Lease, seconds: float) -> Lease:
        self._more.release()
        return self._deliveries.renew(lease, seconds)

    def release(self, lease: Lease) -> None:
        self._deliveries.release(lease)

    def is_next(self) -> bool:
        return self._more.acquire(timeout=5)


def held(lake: DecoupledLake, renewals: Renewals, clock: Mock) -> HeldLease:
    lease = lake.store.deliveries.acquire(lake.stream, "one", 0.3)
    assert lease is not None
    return HeldLease(renewals, lease, 0.3, stall_s=STALL_S, clock=clock)  # type: ignore[arg-type]


def test_a_stalled_delivery_loses_its_lease(delta: DecoupledLake, caplog: pytest.LogCaptureFixture) -> None:
    clock, deliveries = Mock(return_value=0.0), delta.store.deliveries
    renewals = Renewals(deliveries)
    with held(delta, renewals, clock) as one:
        assert renewals.is_next()
        clock.return_value += STALL_S + 1
        wait_until(lambda: deliveries.acquire(delta.stream, "two", 30) is not None, 5)
        assert one.is_stalled
        with pytest.raises(FencedError, match="no progress for 61 s"):
            one.check()
    assert deliveries.acquire(delta.stream, "three", 30) is None, "nothing is taken from the other process"
    assert "no progress for 61 s" in caplog.text


def test_progress_keeps_the_lease_however_long_the_delivery_takes(delta: DecoupledLake) -> None:
    clock = Mock(return_value=0.0)
    renewals = Renewals(delta.store.deliveries)
    with held(delta, renewals, clock) as one:
        for _ in range(3):
            clock.return_value += STALL_S - 1
            assert renewals.is_next()
            one.check()
        assert not one.is_lost


def test_a_step_that_is_supervised_elsewhere_keeps_the_lease(delta: DecoupledLake) -> None:
    clock = Mock(return_value=0.0)
    renewals = Renewals(delta.store.deliveries)
    with held(delta, renewals, clock) as one:
        with one.supervised_elsewhere():
            assert renewals.is_next()
            clock.return_value += 10 * STALL_S
            assert renewals.is_next()
            assert renewals.is_next()
        assert renewals.is_next()
        assert not one.is_lost


def test_a_hanging_delivery_blocks_no_stream(delta: DecoupledLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process takes over its stream, and its own process delivers other streams."""
    monkeypatch.setattr(lease_module, "RENEWALS_PER_LEASE", 30)
    round_of, goes_on = StreamWorker._round, threading.Event()
    hanging: list[StreamWorker] = []

    def hang(worker: StreamWorker, held: HeldLease, trigger: str | None) -> object:
        if not hanging:
            hanging.append(worker)
            held._stall_s = 0.0
            goes_on.wait(60)
        return round_of(worker, held, trigger)

    monkeypatch.setattr(StreamWorker, "_round", hang)
    with serving(delta, settings=replace(QUICK, parallel=1)):
        try:
            wait_until(lambda: bool(hanging) and hanging[0].is_stalled, 10)
            other = DecoupledLake(delta.lake.data_folder.parent / "other", delta.store_url, OTHER_QUERY)
            other.decouple(**SOON)
            other.fill(2)
            wait_until(lambda: other.left == 0, 20)
            assert delta.left == 4
            with serving(delta):
                wait_until(lambda: delta.left == 0, 20)
        finally:
            goes_on.set()
    other.store.close()
    assert len(delta.rows()) == 8


HANGING = """
import concurrent.futures, functools, sys, threading
from penstock.cli import deliver as process
from penstock.cli.app import app
from penstock.delivery.worker import StreamWorker

def hang(worker, request):
    pool = concurrent.futures.ThreadPoolExecutor(1)  # Python waits for its threads at the end
    hung = pool.submit(threading.Event().wait)
    print("stalled", flush=True)
    hung.result()

StreamWorker.attempt = hang
process.exit_if_stalled = functools.partial(process.exit_if_stalled, seconds=0.3)
app(["deliver", "--store", *sys.argv[1:]])
"""


@pytest.mark.parametrize("how", [(), ("--once",)], ids=["deliver", "deliver --once"])
def test_sigterm_ends_a_process_whose_delivery_hangs(delta: DecoupledLake, how: tuple[str, ...]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, delta.store_url, *how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "stalled\n"
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "has made no progress" in error
