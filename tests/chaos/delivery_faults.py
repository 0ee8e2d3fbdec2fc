"""What hits decoupled streams alone: their delivery processes, and a table that cannot be reached."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servers.lossy_proxy import Fault as RequestFault
from tests.chaos.deliveries import LEASE_S, DeliveryProcess, HeldLease
from tests.chaos.deployments import OBJECT_STORES, Environment, Setup
from tests.chaos.fault import Fault, NotApplicable, TrialFailed

from penstock.committers.crash_points import DELIVERY_POINTS

if TYPE_CHECKING:
    from tests.chaos.trial import Trial

AT_WORK_S_MAX = 15.0
"""Within this time a delivery is made, or there is none to hit."""
POINT_S_MAX = 40.0
"""A process must start, and a delivery become due."""
TAKE_OVER_S_MAX = 60.0
POINTS = (*DELIVERY_POINTS, "commit.start", "commit.landed")
NEW_COLUMN = "evolve.done"


class DeliveryFault(Fault):
    """A fault of a decoupled stream."""

    def applies_to(self, setup: Setup) -> bool:
        return setup.is_decoupled


@dataclass(frozen=True)
class KillDelivery(DeliveryFault, kind="kill"):
    """SIGKILL to one of the delivery processes, at any moment or while it holds the lease."""

    at_work: bool = False

    @property
    def name(self) -> str:
        return "kill delivery at work" if self.at_work else "kill delivery at any moment"

    def inject(self, trial: Trial) -> str:
        if self.at_work:
            process, lease = wait_for_work(trial)
            time.sleep(trial.rng.uniform(0, 0.3))
            held = trial.deliveries.store.lease() == lease
            trial.deliveries.kill(process)
            return (
                f"killed delivery process {process.number}, which {'held' if held else 'had held'} the lease"
            )
        trial.wait_briefly()
        trial.deliveries.keep_running()
        process = trial.deliveries.any()
        trial.deliveries.kill(process)
        return f"killed delivery process {process.number}"


@dataclass(frozen=True)
class KillDeliveryAtPoint(DeliveryFault, kind="kill", name="kill delivery at {point}"):
    """SIGKILL to a delivery process where it waits at a crash point. Others take over."""

    point: str

    def inject(self, trial: Trial) -> str:
        return kill_at(trial, self.point, lambda: None)


@dataclass(frozen=True)
class KillDeliveryOfNewColumn(
    DeliveryFault, kind="kill", name=f"kill delivery at {NEW_COLUMN}", ends_driver=True
):
    """The driver is killed, the next one has one more column, and the delivery that brings it is killed."""

    def applies_to(self, setup: Setup) -> bool:
        return setup.is_decoupled and setup.format == "delta"

    def inject(self, trial: Trial) -> str:
        def next_driver() -> None:
            trial.driver.kill()
            trial.columns += 1
            trial.start_next_driver(may_wait=False)

        return kill_at(trial, NEW_COLUMN, next_driver)


def kill_at(trial: Trial, point: str, then: Callable[[], None]) -> str:
    """Kill all delivery processes, and the next one at `point`, which it may reach only after `then`."""
    process, killed = trial.deliveries.only_one_that_waits_at(point)
    try:
        then()
        reached = trial.wait_until(process.is_paused, POINT_S_MAX)
        time.sleep(trial.rng.choice((0.0, 0.0, 1.0)))
    finally:
        trial.deliveries.kill_the_waiting(process)
    if not reached:
        raise NotApplicable(f"no delivery came to {point} in {POINT_S_MAX:.0f} s")
    return f"killed {killed} delivery processes, and process {process.number} at {point}"


@dataclass(frozen=True)
class PauseDelivery(DeliveryFault, kind="pause", name="pause delivery until another has taken over"):
    """SIGSTOP to the process that holds the lease, until another one has taken over; then it wakes up."""

    def inject(self, trial: Trial) -> str:
        trial.deliveries.at_least(2)
        process, lease = stop_at_work(trial)
        store, before, failures = (
            trial.deliveries.store,
            trial.deliveries.store.delivered(),
            len(trial.failures()),
        )
        began = time.monotonic()

        def has_taken_over() -> bool:
            now = store.lease()
            is_other = now is not None and now.fence > lease.fence
            return is_other or store.delivered() > before

        def is_locked_out() -> bool:
            said = [*trial.failures()[failures:], *trial.deliveries.log_errors()]
            return time.monotonic() > began + 5 and any("database is locked" in error for error in said)

        try:
            trial.wait_until(lambda: has_taken_over() or is_locked_out(), TAKE_OVER_S_MAX)
            taken = has_taken_over()
            trial.wait_until(lambda: store.delivered() > before, LEASE_S * 2.0)
            done = store.delivered() - before
        finally:
            process.send(signal.SIGCONT)
        slept = f"stopped delivery process {process.number} for {time.monotonic() - began:.0f} s"
        if taken:
            return f"{slept}, in which another one took over and delivered {done} batches; then it woke up"
        if is_locked_out():
            return (
                f"{slept} with its lock on the store, which nobody else gets past in SQLite; then it woke up"
            )
        raise NotApplicable(f"{slept}; no other one took over")


def wait_for_work(trial: Trial) -> tuple[DeliveryProcess, HeldLease]:
    """The delivery process that holds the lease.

    Raises:
        NotApplicable: nothing was delivered.
    """
    found: list[tuple[DeliveryProcess, HeldLease]] = []

    def is_at_work() -> bool:
        process, lease = trial.deliveries.at_work(), trial.deliveries.store.lease()
        if process is not None and lease is not None and lease.pid == process.pid:
            found.append((process, lease))
        return bool(found)

    if not trial.wait_until(is_at_work, AT_WORK_S_MAX):
        raise NotApplicable(f"no delivery was under way for {AT_WORK_S_MAX:.0f} s")
    return found[0]


def stop_at_work(trial: Trial) -> tuple[DeliveryProcess, HeldLease]:
    """Stop a process that holds the lease, and still does once it is stopped.

    Raises:
        NotApplicable: none was caught.
    """
    for _ in range(6):
        process, lease = wait_for_work(trial)
        time.sleep(trial.rng.uniform(0, 0.2))
        if process.send(signal.SIGSTOP):
            if trial.deliveries.store.lease() == lease:
                return process, lease
            process.send(signal.SIGCONT)
    raise NotApplicable("each delivery had ended before it could be stopped")


# The table --------------------------------------------------------------------------------------------

_TABLE_REQUESTS: Mapping[Environment, str] = {
    **dict.fromkeys(OBJECT_STORES, "_delta_log"),
    "REST catalog": "",
}
"""A word of the first line of every request that looks at the table or changes it."""


@dataclass(frozen=True)
class TableDown(DeliveryFault, kind="connection", name="table down, query goes on"):
    """All requests to the table are lost for seconds. The query must not notice until its backlog is full."""

    def applies_to(self, setup: Setup) -> bool:
        return setup.is_decoupled and setup.environment in _TABLE_REQUESTS

    def inject(self, trial: Trial) -> str:
        server = trial.deployment.server
        assert server is not None
        before = trial.progress.committed()
        if not trial.wait_until(lambda: trial.progress.committed() >= before + 2, 20):
            raise NotApplicable("the query was not on its way")
        failures, before = len(trial.failures()), trial.progress.committed()
        seconds = trial.rng.choice((3.0, 6.0, 9.0))
        lost: RequestFault = "request lost"
        server.proxy.spend(*[lost] * 10_000, on=_TABLE_REQUESTS[trial.deployment.setup.environment])
        try:
            trial.wait_until(lambda: False, seconds)
            done, failed = trial.progress.committed() - before, trial.failures()[failures:]
            hit, waits = len(server.proxy.spent()), trial.deliveries.store.waits()
        finally:
            server.proxy.spend()
        noticed = [error for error in failed if "backlog" not in error]
        if noticed:
            raise TrialFailed(f"the table was down for {seconds:.0f} s, and the query failed: {noticed[0]}")
        if not hit:
            raise NotApplicable(f"no request was sent in {seconds:.0f} s")
        if not done and not waits:
            raise TrialFailed(f"the table was down for {seconds:.0f} s, and the query did not go on")
        full = ", until its backlog was full" if waits or failed else ""
        return f"{hit} requests were lost in {seconds:.0f} s, in which {done} batches were prepared{full}"
