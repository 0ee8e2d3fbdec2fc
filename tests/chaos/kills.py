"""SIGKILL: to the whole driver, to a part of it, to what works for it, to the database of its store."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import psutil
from servers.processes import send
from tests.chaos.drivers import Role
from tests.chaos.fault import Fault, Kind, NotNow
from tests.chaos.places import CLUSTER, Place

if TYPE_CHECKING:
    from tests.chaos.life import Life

AT_WORK_S_MAX = 30.0
"""How long a worker is watched, to hit it while it works."""


@dataclass(frozen=True)
class KillDriver(Fault):
    """SIGKILL to the driver and everything it started, at any moment, or where it waits at a crash point."""

    at_point: bool = False
    kind: ClassVar[Kind] = "kill"
    ends_driver: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "kill driver at a crash point" if self.at_point else "kill driver at any moment"

    def happen(self, life: Life) -> str:
        where = ""
        if self.at_point:
            life.wait_for_crash_point()
            where = f" at {life.driver.point}"
        else:
            life.wait_a_moment()
        return f"killed {life.driver.kill()} processes of driver {life.driver.number}{where}"


@dataclass(frozen=True)
class KillPartOfDriver(Fault):
    """SIGKILL to the driver's Python or to its JVM alone. The rest must end by itself."""

    role: Role
    kind: ClassVar[Kind] = "kill"
    ends_driver: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return f"kill only the driver's {self.role}"

    def happen(self, life: Life) -> str:
        life.wait_a_moment()
        driver = life.driver
        if not send(signal.SIGKILL, driver.of_role(self.role)):
            raise NotNow(f"driver {driver.number} has no {self.role} any more")
        life.start_next_driver()
        ended = "the rest ended by itself"
        if not driver.wait_for_end(30):
            ended = f"{driver.kill()} processes were left after 30 s, and killed"
        return f"killed the {self.role} of driver {driver.number}; {ended}"


@dataclass(frozen=True)
class KillWorker(Fault):
    """SIGKILL to one process that works for the driver, while it works."""

    role: Role
    kind: ClassVar[Kind] = "kill"

    @property
    def name(self) -> str:
        return f"kill {self.role}"

    def applies_to(self, place: Place) -> bool:
        return self.role != "executor" or place.master == CLUSTER

    def happen(self, life: Life) -> str:
        life.wait_a_moment()
        victim = _any(life, self.role) if self.role == "executor" else _at_work(life, self.role)
        if not send(signal.SIGKILL, [victim]):
            raise NotNow(f"{self.role} {victim.pid} has just ended")
        return f"killed {self.role} {victim.pid}"


def _any(life: Life, role: Role) -> psutil.Process:
    found = life.driver.of_role(role)
    if not found:
        raise NotNow(f"no {role} is running")
    return life.rng.choice(found)


def _at_work(life: Life, role: Role) -> psutil.Process:
    """A process of this role that is running right now, not waiting for the next batch."""
    deadline = time.monotonic() + AT_WORK_S_MAX
    while time.monotonic() < deadline:
        candidates = life.driver.of_role(role)
        looked = time.monotonic()
        while candidates and time.monotonic() < looked + 0.5:
            for process in candidates:
                with suppress(psutil.NoSuchProcess):
                    if process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP):
                        return process
            time.sleep(0.001)
        life.tend()
    raise NotNow(f"no {role} was seen at work for {AT_WORK_S_MAX:.0f} s")


@dataclass(frozen=True)
class KillAtPoint(Fault):
    """SIGKILL to the one process that waits at a crash point."""

    kind: ClassVar[Kind] = "kill"

    @property
    def name(self) -> str:
        return "kill worker at a crash point"

    def happen(self, life: Life) -> str:
        process = life.wait_for_crash_point()
        if not send(signal.SIGKILL, [process]):
            raise NotNow("it has just ended")
        return f"killed process {process.pid} at {life.driver.point}"


@dataclass(frozen=True)
class KillPostgres(Fault):
    """SIGKILL to the server and all its backends; it starts again a moment later."""

    kind: ClassVar[Kind] = "kill"

    @property
    def name(self) -> str:
        return "kill Postgres"

    def applies_to(self, place: Place) -> bool:
        return place.store == "postgres"

    def happen(self, life: Life) -> str:
        assert life.site.postgres is not None
        life.wait_a_moment()
        killed = life.site.postgres.kill()
        down_s = life.rng.choice((0.0, 0.0, 1.0, 3.0))
        time.sleep(down_s)
        life.site.postgres.start()
        return f"killed {killed} processes of Postgres, started it again after {down_s:.0f} s"
