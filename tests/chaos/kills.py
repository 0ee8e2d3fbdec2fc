"""SIGKILL: to the whole driver, to a part of it, to what works for it, to the database of its store."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
from servers.processes import send
from tests.chaos.deployments import CLUSTER, Setup
from tests.chaos.drivers import Role
from tests.chaos.fault import Fault, NotApplicable

if TYPE_CHECKING:
    from tests.chaos.trial import Trial

AT_WORK_S_MAX = 30.0
"""How long a worker is watched, to hit it while it works."""


@dataclass(frozen=True)
class KillDriver(Fault, kind="kill", ends_driver=True):
    """SIGKILL to the driver and everything it started, at any moment, or where it waits at a crash point."""

    at_point: bool = False

    @property
    def name(self) -> str:
        return "kill driver at a crash point" if self.at_point else "kill driver at any moment"

    def inject(self, trial: Trial) -> str:
        where = ""
        if self.at_point:
            trial.wait_for_crash_point()
            where = f" at {trial.driver.point}"
        else:
            trial.wait_briefly()
        return f"killed {trial.driver.kill()} processes of driver {trial.driver.number}{where}"


@dataclass(frozen=True)
class KillPartOfDriver(Fault, kind="kill", name="kill only the driver's {role}", ends_driver=True):
    """SIGKILL to the driver's Python or to its JVM alone. The rest must end by itself."""

    role: Role

    def inject(self, trial: Trial) -> str:
        trial.wait_briefly()
        driver = trial.driver
        if not send(signal.SIGKILL, driver.of_role(self.role)):
            raise NotApplicable(f"driver {driver.number} has no {self.role} any more")
        trial.start_next_driver()
        ended = "the rest ended by itself"
        if not driver.wait_for_end(30):
            ended = f"{driver.kill()} processes were left after 30 s, and killed"
        return f"killed the {self.role} of driver {driver.number}; {ended}"


@dataclass(frozen=True)
class KillWorker(Fault, kind="kill", name="kill {role}"):
    """SIGKILL to one process that works for the driver, while it works."""

    role: Role

    def applies_to(self, setup: Setup) -> bool:
        return self.role != "executor" or setup.master == CLUSTER

    def inject(self, trial: Trial) -> str:
        trial.wait_briefly()
        victim = _any(trial, self.role) if self.role == "executor" else _at_work(trial, self.role)
        if not send(signal.SIGKILL, [victim]):
            raise NotApplicable(f"{self.role} {victim.pid} has just ended")
        return f"killed {self.role} {victim.pid}"


def _any(trial: Trial, role: Role) -> psutil.Process:
    found = trial.driver.of_role(role)
    if not found:
        raise NotApplicable(f"no {role} is running")
    return trial.rng.choice(found)


def _at_work(trial: Trial, role: Role) -> psutil.Process:
    """A process of this role that is running right now, not waiting for the next batch."""
    deadline = time.monotonic() + AT_WORK_S_MAX
    while time.monotonic() < deadline:
        candidates = trial.driver.of_role(role)
        looked = time.monotonic()
        while candidates and time.monotonic() < looked + 0.5:
            for process in candidates:
                with suppress(psutil.NoSuchProcess):
                    if process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP):
                        return process
            time.sleep(0.001)
        trial.keep_running()
    raise NotApplicable(f"no {role} was seen at work for {AT_WORK_S_MAX:.0f} s")


@dataclass(frozen=True)
class KillAtPoint(Fault, kind="kill", name="kill worker at a crash point"):
    """SIGKILL to the one process that waits at a crash point."""

    def inject(self, trial: Trial) -> str:
        process = trial.wait_for_crash_point()
        if not send(signal.SIGKILL, [process]):
            raise NotApplicable("it has just ended")
        return f"killed process {process.pid} at {trial.driver.point}"


@dataclass(frozen=True)
class KillPostgres(Fault, kind="kill", name="kill Postgres"):
    """SIGKILL to the server and all its backends; it starts again a moment later."""

    def applies_to(self, setup: Setup) -> bool:
        return setup.store == "postgres"

    def inject(self, trial: Trial) -> str:
        assert trial.deployment.postgres is not None
        trial.wait_briefly()
        killed = trial.deployment.postgres.kill()
        down_s = trial.rng.choice((0.0, 0.0, 1.0, 3.0))
        time.sleep(down_s)
        trial.deployment.postgres.start()
        return f"killed {killed} processes of Postgres, started it again after {down_s:.0f} s"
