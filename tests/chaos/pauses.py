"""SIGSTOP, and SIGCONT later: for seconds, or until another driver has taken over."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from tests.chaos.drivers import Driver, stopped
from tests.chaos.fault import Fault, Kind, NotNow
from tests.chaos.places import OBJECT_STORES, Place

if TYPE_CHECKING:
    from tests.chaos.life import Life

TAKE_OVER_S_MAX = 60.0


@dataclass(frozen=True)
class PauseDriver(Fault):
    """SIGSTOP to the whole driver, until another driver has taken over and committed; then it wakes up."""

    kind: ClassVar[Kind] = "pause"
    ends_driver: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "pause driver until another has taken over"

    def happen(self, life: Life) -> str:
        life.wait_a_moment()
        old, failures = life.driver, len(life.failures())
        stopped = old.stop()
        before = life.progress.committed()
        began = time.monotonic()

        def is_locked_out() -> bool:
            return any("database is locked" in error for error in life.failures()[failures:])

        def has_taken_over() -> bool:
            return life.progress.committed() >= before + 2

        try:
            life.start_next_driver(may_wait=False)
            life.wait_until(lambda: has_taken_over() or is_locked_out(), TAKE_OVER_S_MAX)
            done = life.progress.committed() - before
        finally:
            old.resume()
        slept = f"stopped {stopped} processes of driver {old.number} for {time.monotonic() - began:.0f} s"
        woken = self._end_one_of_two(life, old)
        if done >= 2:
            return f"{slept}, in which driver {life.driver.number} committed {done} batches; {woken}"
        if is_locked_out():
            return f"{slept} with its lock on the store, which nobody else gets past in SQLite; {woken}"
        raise NotNow(f"{slept}; the other driver did not get to commit meanwhile; {woken}")

    def _end_one_of_two(self, life: Life, old: Driver) -> str:
        """Both run on one checkpoint. The sink or Spark refuses one of them; which one, in words."""
        new = life.driver
        life.wait_until(lambda: not (old.is_running() and new.is_running()), 45)
        if not old.is_running():
            old.wait_for_end(5)
            return f"then it ended with code {old.exit_code}"
        said = "went on, and the other was refused" if not new.is_running() else "went on beside the other"
        old.kill()
        return f"then it {said}, until it was ended"


@dataclass(frozen=True)
class PauseFor(Fault):
    """SIGSTOP to something for a while, then SIGCONT."""

    what: Literal["driver", "task worker", "commit worker", "Postgres", "object store"]
    kind: ClassVar[Kind] = "pause"

    @property
    def name(self) -> str:
        return f"pause {self.what} for seconds"

    def applies_to(self, place: Place) -> bool:
        if self.what == "Postgres":
            return place.store == "postgres"
        return self.what != "object store" or place.environment in OBJECT_STORES

    def happen(self, life: Life) -> str:
        life.wait_a_moment()
        seconds = life.rng.choice((0.5, 2.0, 6.0))
        with self._stopped(life):
            time.sleep(seconds)
        return f"stopped {self.what} for {seconds} s"

    def _stopped(self, life: Life) -> AbstractContextManager[object]:
        if self.what == "Postgres":
            assert life.site.postgres is not None
            return life.site.postgres.stopped()
        if self.what == "object store":
            assert life.site.server is not None
            return life.site.server.stopped()
        driver = life.driver
        found = driver.processes() if self.what == "driver" else driver.of_role(self.what)
        if not found:
            raise NotNow(f"no {self.what} is running")
        return stopped(found)
