"""One trial: a stream from its first batch to its last, with faults all the way, checked after each."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType

import psutil
from tests.chaos.checks import Verdict, check_after_trial, check_during_trial
from tests.chaos.deliveries import Deliveries
from tests.chaos.deployments import CLUSTER, Deployment
from tests.chaos.drivers import NEEDS_OPERATOR, Driver
from tests.chaos.fault import Fault, Kind, NotApplicable, TrialFailed
from tests.chaos.kills import KillAtPoint, KillDriver
from tests.chaos.plan import DriverPlan
from tests.chaos.source import Progress, Source
from tests.support.driver_process import SHORT_LIVED

HEAL_S_MAX = 120.0
"""Within this time after a fault the stream must have gone on."""
END_S_MAX = 30.0
"""Within this time a delivery process ends that was told to."""
BATCHES_TO_POINT = 4
"""A crash point that is not reached in so many batches is not reached any more."""
BACKLOG = 12
"""Files that wait for the stream, at least."""
POLL_S = 0.02


@dataclass(frozen=True)
class Event:
    """One fault, and what was found after the stream had healed."""

    at_s: float
    """Since the trial began."""
    fault: str
    kind: Kind
    counts: bool
    """False if it turned out not to be possible at that moment."""
    what: str
    healed_s: float
    restarts: int
    """Starts of the query that it took."""
    verdict: Verdict


@dataclass
class Result:
    """What became of a trial."""

    number: int
    setup: str
    master: str
    events: list[Event] = field(default_factory=list)
    batches: int = 0
    seconds: float = 0.0
    verdict: Verdict = field(default_factory=Verdict)
    problems: list[str] = field(default_factory=list)


class Trial:
    """A stream into a setup, and what happens to it.

    A context manager: no process of it outlives it.
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
        """Of the query, beyond those that its driver's plan has."""
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

    # The course of it ---------------------------------------------------------------------------------

    def run(self, is_over: Callable[[int], bool]) -> Iterator[Event]:
        """Suffer fault after fault until `is_over(faults so far)`, then stream to the end.

        Raises:
            TrialFailed: as soon as something is wrong.
        """
        self._go()
        self.wait_until(self._is_under_way, HEAL_S_MAX)
        while not is_over(len(self.result.events)):
            yield from self._run_driver(self._plan, self.driver, is_over)
        self._end()

    def _run_driver(
        self, plan: DriverPlan, driver: Driver, is_over: Callable[[int], bool]
    ) -> Iterator[Event]:
        """One driver from its start to its end."""
        self._prepare_next_driver()
        for fault in (*plan.faults, plan.end, KillDriver()):
            if is_over(len(self.result.events)) or self.driver is not driver:
                return
            if driver.paused() is None or isinstance(fault, (KillAtPoint, KillDriver)):
                yield self._inject(fault)

    def _inject(self, fault: Fault) -> Event:
        driver, starts, counts = self.driver, self._starts(), True
        try:
            what = fault.inject(self)
        except NotApplicable as reason:
            counts, what = False, str(reason)
        struck = time.monotonic()
        if self.driver is driver and fault.ends_driver and not driver.is_running():
            self.start_next_driver()
        self._heal(fault)
        healed_s = time.monotonic() - struck
        verdict = check_during_trial(self.deployment, self.source, self._delivered())
        restarts = self._starts() - starts
        at_s = struck - self._began
        event = Event(at_s, fault.name, fault.kind, counts, what, healed_s, restarts, verdict)
        self.result.events.append(event)
        if verdict.problems:
            raise TrialFailed(f"after {fault.name} ({what}): {'; '.join(verdict.problems)}")
        return event

    def _heal(self, fault: Fault) -> None:
        """Wait until a batch that began after the fault is done, or the driver waits at its crash point; and
        until what was prepared before is delivered.
        """
        committed, starts = self.progress.committed(), self._starts()
        deadline = time.monotonic() + HEAL_S_MAX

        def has_gone_on() -> bool:
            is_new_run = self._starts() > starts
            return self.progress.committed() >= committed + (1 if is_new_run else 2)

        while not has_gone_on() and self.driver.paused() is None:
            if time.monotonic() > deadline:
                raise TrialFailed(f"after {fault.name} no batch was committed within {HEAL_S_MAX:.0f} s")
            if not self.driver.is_running():
                self._replace_driver(fault.name)
            self.keep_running()
            time.sleep(POLL_S)
        if self.deployment.setup.is_decoupled:
            self._wait_for_delivery(committed, fault.name)

    def _wait_for_delivery(self, batch_id: int, why: str) -> None:
        """No fault of a trial may need an operator, nor end what delivers."""

        def is_delivered() -> bool:
            return self.deliveries.store.delivered() >= batch_id

        delivered = self.wait_until(is_delivered, HEAL_S_MAX)
        if parked := self.deliveries.store.parked():
            raise TrialFailed(f"after {why} the stream is parked: {parked}")
        if not delivered:
            said = "; ".join(self.deliveries.log_errors()[-3:])
            raise TrialFailed(f"after {why} batch {batch_id} was not delivered in {HEAL_S_MAX:.0f} s: {said}")
        if self.deliveries.ended_badly:
            raise TrialFailed(f"after {why} a delivery ended by itself: {self.deliveries.ended_badly[0]}")

    def _replace_driver(self, why: str) -> None:
        """It ended by itself, as it may: another one goes on."""
        if self.driver.exit_code == NEEDS_OPERATOR:
            raise TrialFailed(f"after {why} the stream asks for an operator: {self.failures()[-1]}")
        self.driver.kill()
        self.driver = self._new_driver()
        self._plan = replace(self._plan, point=None)
        self._go()

    def _end(self) -> None:
        """The last driver streams what the source has, without a fault; then the whole invariant holds."""
        if self.driver.point is not None:
            self.driver.kill()
            self.start_next_driver(may_wait=False)
        self._finish.touch()
        deadline = time.monotonic() + HEAL_S_MAX
        while self.driver.is_running() or self.driver.exit_code != 0:
            if time.monotonic() > deadline:
                raise TrialFailed(f"the last driver did not come to its end in {HEAL_S_MAX:.0f} s")
            if not self.driver.is_running():
                self._replace_driver("the last fault")
            self.deliveries.keep_running()
            time.sleep(POLL_S)
        if self.deployment.setup.is_decoupled:
            self._deliver_the_rest()
        self.result.batches = self.progress.committed() + 1
        self.result.verdict = check_after_trial(self.deployment, self.source)
        if self.result.verdict.problems:
            raise TrialFailed(f"at the end of the source: {'; '.join(self.result.verdict.problems)}")

    def _deliver_the_rest(self) -> None:
        """With Spark at its end: the processes end well when told to, and `--once` leaves nothing."""
        try:
            self.deliveries.stop(END_S_MAX)
        except AssertionError as error:
            raise TrialFailed(f"at the end of the source: {error}") from None
        deadline = time.monotonic() + HEAL_S_MAX
        while (code := self.deliveries.drain(HEAL_S_MAX)) != 0:
            if parked := self.deliveries.store.parked():
                raise TrialFailed(f"at the end of the source the stream is parked: {parked}")
            if time.monotonic() > deadline:
                said = "; ".join(self.deliveries.log_errors()[-3:])
                raise TrialFailed(
                    f"the rest was not delivered in {HEAL_S_MAX:.0f} s: exit code {code}; {said}"
                )

    def _delivered(self) -> int | None:
        """The last batch that the table must have; None if it must have all that Spark has logged."""
        return self.deliveries.store.delivered() if self.deployment.setup.is_decoupled else None

    # Drivers ------------------------------------------------------------------------------------------

    def start_next_driver(self, may_wait: bool = True) -> None:
        """The next driver goes on; its Spark has been starting already.

        Args:
            may_wait: False for one that shall not wait at a crash point, whatever the plan says
        """
        self.driver, self._next = self._next or self._new_driver(), None
        self._plan = next(self._plans)
        if not may_wait:
            faults = [fault for fault in self._plan.faults if fault != KillAtPoint()]
            self._plan = replace(self._plan, point=None, faults=faults, end=KillDriver())
        self._go()

    def _go(self) -> None:
        self.keep_running()
        point = self._plan.point
        if point is not None and self._plan.batches_ahead is not None:
            point = f"{point}@{self.progress.committed() + self._plan.batches_ahead}"
        columns = [f"id + {number} AS extra_{number}" for number in range(self._plan.columns + self.columns)]
        self.driver.go(point, columns, self._plan.partitions)

    def _prepare_next_driver(self) -> None:
        if self._next is None:
            self._next = self._new_driver()

    def _new_driver(self) -> Driver:
        setup = self.deployment.setup
        arguments = [
            self.deployment.data_source,
            str(self.deployment.source),
            str(self.deployment.checkpoint),
        ]
        arguments += ["--master", setup.master, "--finish", str(self._finish)]
        for key, value in self.deployment.options.items():
            arguments += ["--option", f"{key}={value}"]
        for key, value in _conf(setup.master).items():
            arguments += ["--conf", f"{key}={value}"]
        driver = Driver(len(self._drivers), self.deployment.root, arguments)
        self._drivers.append(driver)
        self._stack.enter_context(driver)
        return driver

    # What faults ask ----------------------------------------------------------------------------------

    def wait_briefly(self) -> None:
        """So that faults hit at any moment of a batch."""
        time.sleep(self.rng.uniform(0, 0.7))

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """False if it is not so within this time. The source goes on growing meanwhile."""
        deadline = time.monotonic() + timeout_s
        while not is_so():
            if time.monotonic() > deadline:
                return False
            self.keep_running()
            time.sleep(POLL_S)
        return True

    def wait_for_crash_point(self) -> psutil.Process:
        """The process of the driver that waits at its crash point.

        Raises:
            NotApplicable: it never got there.
        """
        driver = self.driver
        name, _, batch = (driver.point or "").partition("@")
        last = int(batch) if batch else self.progress.committed() + BATCHES_TO_POINT

        def is_decided() -> bool:
            return driver.paused() is not None or self.progress.committed() >= last or not driver.is_running()

        self.wait_until(is_decided, HEAL_S_MAX)
        process = driver.paused()
        if process is None:
            raise NotApplicable(
                f"the driver did not come to {name}" + (f" in batch {batch}" if batch else "")
            )
        return process

    def failures(self) -> list[str]:
        """What the query failed with, in all drivers, in their order."""
        return [error for driver in self._drivers for error in driver.events("failed")]

    def _starts(self) -> int:
        return sum(len(driver.events("started")) for driver in self._drivers)

    def _is_under_way(self) -> bool:
        return self.progress.committed() >= 1 or self.driver.paused() is not None

    def keep_running(self) -> None:
        """The source never runs dry, and what delivers is started again."""
        self.source.grow_to(self.progress.committed() + 1 + BACKLOG)
        self.deliveries.keep_running()


def _conf(master: str) -> Mapping[str, str]:
    conf = {**SHORT_LIVED, "spark.sql.shuffle.partitions": "2"}
    if master == CLUSTER:
        conf |= {
            "spark.executor.extraJavaOptions": SHORT_LIVED["spark.driver.extraJavaOptions"],
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.task.maxFailures": "8",
        }
    return conf
