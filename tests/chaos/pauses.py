"""SIGSTOP, and SIGCONT later: for seconds, or until another driver has taken over."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.chaos.deployments import OBJECT_STORES, Setup
from tests.chaos.drivers import Driver, stopped
from tests.chaos.fault import Fault, NotApplicable

if TYPE_CHECKING:
    from tests.chaos.trial import Trial

TAKE_OVER_S_MAX = 60.0


@dataclass(frozen=True)
class PauseDriver(Fault, kind="pause", name="pause driver until another has taken over", ends_driver=True):
    """SIGSTOP to the whole driver, until another driver has taken over and committed; then it wakes up."""

    def inject(self, trial: Trial) -> str:
        trial.wait_briefly()
        old, failures = trial.driver, len(trial.failures())
        stopped = old.stop()
        before = trial.progress.committed()
        began = time.monotonic()

        def is_locked_out() -> bool:
            return any("database is locked" in error for error in trial.failures()[failures:])

        def has_taken_over() -> bool:
            return trial.progress.committed() >= before + 2

        try:
            trial.start_next_driver(may_wait=False)
            trial.wait_until(lambda: has_taken_over() or is_locked_out(), TAKE_OVER_S_MAX)
            done = trial.progress.committed() - before
        finally:
            old.resume()
        slept = f"stopped {stopped} processes of driver {old.number} for {time.monotonic() - began:.0f} s"
        woken = self._end_one_of_two(trial, old)
        if done >= 2:
            return f"{slept}, in which driver {trial.driver.number} committed {done} batches; {woken}"
        if is_locked_out():
            return f"{slept} with its lock on the store, which nobody else gets past in SQLite; {woken}"
        raise NotApplicable(f"{slept}; the other driver did not get to commit meanwhile; {woken}")

    def _end_one_of_two(self, trial: Trial, old: Driver) -> str:
        """Both run on one checkpoint. The sink or Spark refuses one of them; which one, in words."""
        new = trial.driver
        trial.wait_until(lambda: not (old.is_running() and new.is_running()), 45)
        if not old.is_running():
            old.wait_for_end(5)
            return f"then it ended with code {old.exit_code}"
        said = "went on, and the other was refused" if not new.is_running() else "went on beside the other"
        old.kill()
        return f"then it {said}, until it was ended"


@dataclass(frozen=True)
class PauseFor(Fault, kind="pause", name="pause {what} for seconds"):
    """SIGSTOP to something for a while, then SIGCONT."""

    what: Literal["driver", "task worker", "commit worker", "Postgres", "object store"]

    def applies_to(self, setup: Setup) -> bool:
        if self.what == "Postgres":
            return setup.store == "postgres"
        return self.what != "object store" or setup.environment in OBJECT_STORES

    def inject(self, trial: Trial) -> str:
        trial.wait_briefly()
        seconds = trial.rng.choice((0.5, 2.0, 6.0))
        with self._stopped(trial):
            time.sleep(seconds)
        return f"stopped {self.what} for {seconds} s"

    def _stopped(self, trial: Trial) -> AbstractContextManager[object]:
        if self.what == "Postgres":
            assert trial.deployment.postgres is not None
            return trial.deployment.postgres.stopped()
        if self.what == "object store":
            assert trial.deployment.server is not None
            return trial.deployment.server.stopped()
        driver = trial.driver
        found = driver.processes() if self.what == "driver" else driver.of_role(self.what)
        if not found:
            raise NotApplicable(f"no {self.what} is running")
        return stopped(found)
