"""The faults that only decoupled streams have: of their delivery processes, and of an unreachable table."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tests.chaos.deliveries import LEASE_S, DeliveryProcess, Lease
from tests.chaos.deployments import OBJECT_STORES, Setup
from tests.chaos.faults import TAKE_OVER_S_MAX, Fault, NotApplicable, TrialFailed, failing_requests

from penstock.committers.crash_points import DELIVERY_POINTS

if TYPE_CHECKING:
    from tests.chaos.trial import Trial

AT_WORK_S_MAX = 15.0
"""Within this time a delivery begins, or there is none to hit."""
POINT_S_MAX = 40.0
"""Time for a process to start, and for a delivery to become due."""
POINTS = (*DELIVERY_POINTS, "commit.start", "commit.landed")
NEW_COLUMN = "evolve.done"


def _kill(trial: Trial) -> str:
    """SIGKILL to one of the delivery processes, at any moment."""
    trial.wait_briefly()
    trial.deliveries.keep_running()
    process = trial.deliveries.any()
    trial.deliveries.kill(process)
    return f"killed delivery process {process.number}"


def _kill_at_work(trial: Trial) -> str:
    """SIGKILL to the delivery process that holds the lease."""
    process, lease = _wait_for_work(trial)
    time.sleep(trial.rng.uniform(0, 0.3))
    held = "held" if trial.deliveries.store.lease() == lease else "had held"
    trial.deliveries.kill(process)
    return f"killed delivery process {process.number}, which {held} the lease"


def _kill_at_point(point: str, trial: Trial, then: Callable[[], None] = lambda: None) -> str:
    """SIGKILL to a delivery process where it waits at a crash point, which it may reach only after `then`."""
    with trial.deliveries.only_one_that_waits_at(point) as (process, killed):
        then()
        reached = trial.wait_until(process.is_paused, POINT_S_MAX)
        time.sleep(trial.rng.choice((0.0, 0.0, 1.0)))
    if not reached:
        raise NotApplicable(f"no delivery came to {point} in {POINT_S_MAX:.0f} s")
    return f"killed {killed} delivery processes, and process {process.number} at {point}"


def _kill_at_new_column(trial: Trial) -> str:
    """Kill the driver; the next one has one more column. Kill the delivery that adds it to the table."""

    def next_driver() -> None:
        trial.driver.kill()
        trial.columns += 1
        trial.start_next_driver(may_wait=False)

    return _kill_at_point(NEW_COLUMN, trial, next_driver)


def _pause(trial: Trial) -> str:
    """SIGSTOP to the process that holds the lease, until another one has taken over; then it resumes."""
    trial.deliveries.at_least(2)
    process, lease = _stop_at_work(trial)
    store, failures = trial.deliveries.store, len(trial.failures())
    before, began = store.delivered(), time.monotonic()

    def has_taken_over() -> bool:
        now = store.lease()
        return (now is not None and now.fence > lease.fence) or store.delivered() > before

    def is_locked_out() -> bool:
        errors = [*trial.failures()[failures:], *trial.deliveries.log_errors()]
        return time.monotonic() > began + 5 and any("database is locked" in error for error in errors)

    try:
        trial.wait_until(lambda: has_taken_over() or is_locked_out(), TAKE_OVER_S_MAX)
        taken = has_taken_over()
        trial.wait_until(lambda: store.delivered() > before, LEASE_S * 2.0)
        done = store.delivered() - before
    finally:
        process.send(signal.SIGCONT)
    paused = f"stopped delivery process {process.number} for {time.monotonic() - began:.0f} s"
    if taken:
        return f"{paused}, in which another one took over and delivered {done} batches; then it resumed"
    if is_locked_out():
        return f"{paused}, in which it held the lock of the SQLite store; then it resumed"
    raise NotApplicable(f"{paused}; no other one took over")


def _wait_for_work(trial: Trial) -> tuple[DeliveryProcess, Lease]:
    """Return the delivery process that holds the lease.

    Raises:
        NotApplicable: nothing was delivered.
    """
    found: list[tuple[DeliveryProcess, Lease]] = []

    def is_at_work() -> bool:
        process = trial.deliveries.at_work()
        if process is not None:
            found.append(process)
        return bool(found)

    if not trial.wait_until(is_at_work, AT_WORK_S_MAX):
        raise NotApplicable(f"no delivery was under way for {AT_WORK_S_MAX:.0f} s")
    return found[0]


def _stop_at_work(trial: Trial) -> tuple[DeliveryProcess, Lease]:
    """Stop a process that holds the lease, and still does once it is stopped.

    Raises:
        NotApplicable: none was caught.
    """
    for _ in range(6):
        process, lease = _wait_for_work(trial)
        time.sleep(trial.rng.uniform(0, 0.2))
        if process.send(signal.SIGSTOP):
            if trial.deliveries.store.lease() == lease:
                return process, lease
            process.send(signal.SIGCONT)
    raise NotApplicable("each delivery had ended before it could be stopped")


def _table_down(trial: Trial) -> str:
    """All requests to the table fail for seconds. The query must not notice until its backlog is full."""
    before = trial.progress.committed()
    if not trial.wait_until(lambda: trial.progress.committed() >= before + 2, 20):
        raise NotApplicable("the query made no progress")
    failures, before = len(trial.failures()), trial.progress.committed()
    seconds = trial.rng.choice((3.0, 6.0, 9.0))
    # In an object store, data files are still written.
    words = "_delta_log" if trial.deployment.setup.environment in OBJECT_STORES else ""
    with failing_requests(trial, "request lost", on=words) as proxy:
        trial.wait_until(lambda: False, seconds)
        done, failed = trial.progress.committed() - before, trial.failures()[failures:]
        hit, is_full = proxy.hit(), trial.deliveries.store.is_backlog_full()
    other = [error for error in failed if "backlog" not in error]
    if other:
        raise TrialFailed(f"the table was down for {seconds:.0f} s, and the query failed: {other[0]}")
    if not hit:
        raise NotApplicable(f"no request was sent in {seconds:.0f} s")
    if not done and not is_full:
        raise TrialFailed(f"the table was down for {seconds:.0f} s, and the query did not continue")
    full = ", until its backlog was full" if is_full or failed else ""
    return f"{hit} requests were lost in {seconds:.0f} s, in which {done} batches were prepared{full}"


def _is_decoupled(setup: Setup) -> bool:
    return setup.is_decoupled


def _is_decoupled_table(setup: Setup) -> bool:
    return setup.is_decoupled and setup.is_table


def _is_decoupled_delta(setup: Setup) -> bool:
    """Iceberg adds columns in the commit itself."""
    return setup.is_decoupled and setup.format == "delta"


def _is_decoupled_with_server(setup: Setup) -> bool:
    return setup.is_decoupled and setup.has_server


SURVIVED: Sequence[Fault] = (
    Fault("kill delivery at any moment", "kill", _kill, _is_decoupled),
    Fault("kill delivery at work", "kill", _kill_at_work, _is_decoupled),
    *(
        Fault(
            f"kill delivery at {point}",
            "kill",
            partial(_kill_at_point, point),
            _is_decoupled_table if point.startswith("compact") else _is_decoupled,
        )
        for point in POINTS
    ),
    Fault("pause delivery until another has taken over", "pause", _pause, _is_decoupled),
    Fault("table down, query continues", "connection", _table_down, _is_decoupled_with_server),
)

KILL_AT_NEW_COLUMN = Fault(
    f"kill delivery at {NEW_COLUMN}", "kill", _kill_at_new_column, _is_decoupled_delta, ends_driver=True
)
