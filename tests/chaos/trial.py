"""One trial: a stream from its first batch to its last, with a check after each of its faults."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType

import psutil
from tests.chaos.checks import Verdict, check_after_trial, check_during_trial
from tests.chaos.deliveries import Deliveries
from tests.chaos.deployments import ROWS_IN_REQUEST, WINDOW, Deployment
from tests.chaos.driver import Driver
from tests.chaos.faults import (
    KILL_AT_POINT,
    KILL_DRIVER,
    KILL_DRIVER_AT_POINT,
    Fault,
    Kind,
    NotApplicable,
    TrialFailed,
)
from tests.chaos.plan import DriverPlan
from tests.chaos.program import NEEDS_OPERATOR
from tests.chaos.source import ROWS_PER_FILE, Progress, Source

HEAL_S_MAX = 120.0
"""Within this time after a fault the stream must have continued."""
END_S_MAX = 30.0
"""Within this time a delivery process ends after SIGTERM."""
BATCHES_TO_POINT = 4
"""A crash point that is not reached within so many batches will not be reached."""
BACKLOG = 12
"""Minimum number of files that the stream has not read yet."""
POLL_S = 0.02


@dataclass(frozen=True)
class Event:
    """One fault, and the check after the stream had continued."""

    at_s: float
    """Since the trial began."""
    fault: str
    kind: Kind
    counts: bool
    """False if the fault was not possible at that moment."""
    what: str
    healed_s: float
    restarts: int
    """Starts of the query until it continued."""
    verdict: Verdict


@dataclass
class Result:
    """The result of a trial."""

    number: int
    setup: str
    master: str
    events: list[Event] = field(default_factory=list)
    batches: int = 0
    seconds: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)
    problems: list[str] = field(default_factory=list)


class Trial:
    """A stream into a setup, and its faults.

    A context manager: it leaves no process running.
    """

    def __init__(
        self, number: int, deployment: Deployment, plans: Iterator[DriverPlan], rng: random.Random
    ) -> None:
        self.deployment = deployment
        self.rng = rng
        """Chooses moments, durations and victims."""
        self.source = Source(deployment.source)
        self.progress = Progress(deployment.checkpoint)
        self.result = Result(number, str(deployment.setup), deployment.setup.master)
        self._plans = plans
        self._finish = deployment.root / "finish"
        self._began = time.monotonic()
        self._stack = ExitStack()
        self.deliveries = Deliveries(deployment, rng, self._stack)
        self.columns = 0
        """Columns of the query in addition to those of its driver's plan."""
        self.faulty_requests = 0
        """Requests that the proxy did not answer as the service did. Each may be sent again."""
        self._drivers: list[Driver] = []
        self._plan = next(self._plans)
        self.driver = self._new_driver()
        self._next: Driver | None = None

    def __enter__(self) -> Trial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self.result.seconds = time.monotonic() - self._began

    def run(self, is_over: Callable[[int], bool]) -> Iterator[Event]:
        """Inject fault after fault until `is_over(faults so far)`, then stream to the end.

        Raises:
            TrialFailed: as soon as there is a problem.
        """
        self._start_query()
        self.wait_until(self._has_begun, HEAL_S_MAX)
        while not is_over(len(self.result.events)):
            yield from self._run_driver(self._plan, self.driver, is_over)
        self._end()

    def _has_begun(self) -> bool:
        return self.progress.committed() >= 1 or self.driver.paused() is not None

    def _run_driver(
        self, plan: DriverPlan, driver: Driver, is_over: Callable[[int], bool]
    ) -> Iterator[Event]:
        """Inject the faults of one driver. Meanwhile the next one starts its Spark."""
        if self._next is None:
            self._next = self._new_driver()
        for fault in (*plan.faults, plan.end, KILL_DRIVER):
            if is_over(len(self.result.events)) or self.driver is not driver:
                return
            if driver.paused() is None or fault in (KILL_AT_POINT, KILL_DRIVER_AT_POINT, KILL_DRIVER):
                yield self._inject(fault)

    def _inject(self, fault: Fault) -> Event:
        driver, starts, counts = self.driver, self._starts(), True
        try:
            what = fault.inject(self)
        except NotApplicable as reason:
            counts, what = False, str(reason)
        began = time.monotonic()
        if self.driver is driver and fault.ends_driver and not driver.is_running():
            self.start_next_driver()
        self._heal(fault)
        healed_s = time.monotonic() - began
        verdict = check_during_trial(self.deployment, self.source, self._delivered(), self._doubles_max())
        restarts = self._starts() - starts
        at_s = began - self._began
        event = Event(at_s, fault.name, fault.kind, counts, what, healed_s, restarts, verdict)
        self.result.events.append(event)
        if verdict.problems:
            raise TrialFailed(f"after {fault.name} ({what}): {'; '.join(verdict.problems)}")
        return event

    def _heal(self, fault: Fault) -> None:
        """Wait until the stream has continued.

        A batch that began after the fault is done, or the driver waits at its crash point; and everything
        that was prepared before is delivered.
        """
        committed, starts = self.progress.committed(), self._starts()
        deadline = time.monotonic() + HEAL_S_MAX

        def has_continued() -> bool:
            is_new_run = self._starts() > starts
            return self.progress.committed() >= committed + (1 if is_new_run else 2)

        while not has_continued() and self.driver.paused() is None:
            if time.monotonic() > deadline:
                raise TrialFailed(f"after {fault.name} no batch was committed within {HEAL_S_MAX:.0f} s")
            if not self.driver.is_running():
                self._replace_driver(fault.name)
            self.keep_running()
            time.sleep(POLL_S)
        if self.deployment.setup.is_decoupled:
            self._wait_for_delivery(committed, fault.name)

    def _wait_for_delivery(self, batch_id: int, fault: str) -> None:
        """No fault may require an operator or end a delivery process."""
        store = self.deliveries.store
        delivered = self.wait_until(lambda: store.delivered() >= batch_id, HEAL_S_MAX)
        self._check_not_parked(f"after {fault}")
        if not delivered:
            raise TrialFailed(
                f"after {fault} batch {batch_id} was not delivered in {HEAL_S_MAX:.0f} s: {self._log_end()}"
            )
        if self.deliveries.unexpected_ends:
            raise TrialFailed(f"after {fault} a delivery ended: {self.deliveries.unexpected_ends[0]}")

    def _check_not_parked(self, when: str) -> None:
        if parked := self.deliveries.store.parked():
            raise TrialFailed(f"{when} the stream is parked: {parked}")

    def _log_end(self) -> str:
        return "; ".join(self.deliveries.log_errors()[-3:])

    def _replace_driver(self, fault: str) -> None:
        """Start another driver in place of one that has ended by itself, as it may."""
        if self.driver.exit_code == NEEDS_OPERATOR:
            raise TrialFailed(f"after {fault} the stream requires an operator: {self.failures()[-1]}")
        self.driver.kill()
        self.driver = self._new_driver()
        self._plan = replace(self._plan, point=None)
        self._start_query()

    def _end(self) -> None:
        """Stream to the end of the source without a fault, and check the whole invariant."""
        if self.driver.point is not None:
            self.driver.kill()
            self.start_next_driver(may_wait=False)
        self._finish.touch()
        deadline = time.monotonic() + HEAL_S_MAX
        while self.driver.is_running() or self.driver.exit_code != 0:
            if time.monotonic() > deadline:
                raise TrialFailed(f"the last driver did not end in {HEAL_S_MAX:.0f} s")
            if not self.driver.is_running():
                self._replace_driver("the last fault")
            self.deliveries.keep_running()
            time.sleep(POLL_S)
        if self.deployment.setup.is_decoupled:
            self._deliver_the_rest()
        self.result.batches = self.progress.committed() + 1
        self.result.verdict = check_after_trial(self.deployment, self.source, self._doubles_max())
        if self.result.verdict.problems:
            raise TrialFailed(f"at the end of the source: {'; '.join(self.result.verdict.problems)}")

    def _deliver_the_rest(self) -> None:
        """Spark has ended: SIGTERM ends the delivery processes, and `--once` delivers everything."""
        try:
            self.deliveries.stop(END_S_MAX)
        except AssertionError as error:
            raise TrialFailed(f"at the end of the source: {error}") from None
        deadline = time.monotonic() + HEAL_S_MAX
        while (code := self.deliveries.drain(HEAL_S_MAX)) != 0:
            self._check_not_parked("at the end of the source")
            if time.monotonic() > deadline:
                raise TrialFailed(
                    f"the rest was not delivered in {HEAL_S_MAX:.0f} s: exit code {code}; {self._log_end()}"
                )

    def _doubles_max(self) -> int:
        """Return how many rows may be doubled: none, except where a service does not know ids.

        There, an interruption of a task repeats its batch at most, one of a delivery its window,
        and a request without the service's answer is sent again.
        """
        setup = self.deployment.setup
        if not setup.doubles_rows:
            return 0
        interruptions, rows = self._starts(), ROWS_PER_FILE
        if setup.is_decoupled:
            interruptions, rows = self.deliveries.ends, WINDOW
        interruptions += len(self.result.events) + 1
        return interruptions * rows + self.faulty_requests * ROWS_IN_REQUEST

    def _delivered(self) -> int | None:
        """Return the last batch that the table must have; None for the last one that Spark has logged."""
        return self.deliveries.store.delivered() if self.deployment.setup.is_decoupled else None

    # Drivers ------------------------------------------------------------------------------------------

    def start_next_driver(self, may_wait: bool = True) -> None:
        """Start the query in the next driver, whose Spark has been starting already.

        Args:
            may_wait: False if it must not wait at a crash point, even if its plan says so
        """
        self.driver, self._next = self._next or self._new_driver(), None
        self._plan = next(self._plans)
        if not may_wait:
            faults = [fault for fault in self._plan.faults if fault != KILL_AT_POINT]
            self._plan = replace(self._plan, point=None, faults=faults, end=KILL_DRIVER)
        self._start_query()

    def _start_query(self) -> None:
        self.keep_running()
        point = self._plan.point
        if point is not None and self._plan.batches_ahead is not None:
            point = f"{point}@{self.progress.committed() + self._plan.batches_ahead}"
        columns = [f"id + {number} AS extra_{number}" for number in range(self._plan.columns + self.columns)]
        self.driver.start_query(point, columns, self._plan.partitions)

    def _new_driver(self) -> Driver:
        driver = Driver(len(self._drivers), self.deployment, self._finish)
        self._drivers.append(driver)
        self._stack.enter_context(driver)
        return driver

    def _starts(self) -> int:
        return sum(len(driver.events("started")) for driver in self._drivers)

    # For faults ---------------------------------------------------------------------------------------

    def wait_briefly(self) -> None:
        """Wait until a random moment of a batch."""
        time.sleep(self.rng.uniform(0, 0.7))

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Keep the stream running until `is_so()`. Return False after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > deadline:
                return False
            self.keep_running()
            time.sleep(POLL_S)
        return True

    def wait_for_crash_point(self) -> psutil.Process:
        """Return the process of the driver that waits at its crash point.

        Raises:
            NotApplicable: the driver does not reach it.
        """
        driver = self.driver
        name, _, batch = (driver.point or "").partition("@")
        last = int(batch) if batch else self.progress.committed() + BATCHES_TO_POINT

        def is_decided() -> bool:
            return driver.paused() is not None or self.progress.committed() >= last or not driver.is_running()

        self.wait_until(is_decided, HEAL_S_MAX)
        process = driver.paused()
        if process is None:
            raise NotApplicable(f"the driver did not reach {name}" + (f" in batch {batch}" if batch else ""))
        return process

    def failures(self) -> list[str]:
        """Return the errors of the query in all drivers, in order."""
        return [error for driver in self._drivers for error in driver.events("failed")]

    def keep_running(self) -> None:
        """Add files to the source, and start again the delivery processes that have ended."""
        self.source.grow_to(self.progress.committed() + 1 + BACKLOG)
        self.deliveries.keep_running()
