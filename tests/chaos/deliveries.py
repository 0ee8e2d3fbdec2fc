"""The delivery processes beside a decoupled stream: what starts them again, and what they have done."""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from typing import Any, NamedTuple

import psutil
import sqlalchemy as sa
from servers.processes import send
from tests.chaos.deployments import Deployment
from tests.chaos.drivers import unprivileged

from penstock.testing import RunningJob

LEASE_S = 3
LOOK_S = 1.0
"""How long a look into the store may take."""


class DeliveryProcess(RunningJob):
    """One `penstock deliver`."""

    def __init__(
        self, number: int, deployment: Deployment, *arguments: str, point: str | None = None
    ) -> None:
        """
        Args:
            point: the crash point where it shall wait
        """
        self.number = number
        self.log = deployment.root / f"delivery-{number}.log"
        self._reached = deployment.root / f"delivery-{number}.paused"
        pause = {"PENSTOCK_PAUSE_AT": point, "PENSTOCK_PAUSE_FILE": str(self._reached)} if point else {}
        command = [*(unprivileged() or ()), sys.executable, "-m", "penstock.cli", "deliver"]
        command += ["--store", deployment.store_url, "--lease-seconds", str(LEASE_S), *arguments]
        for option in ("storage", "catalog"):
            given = {k: v for k, v in deployment.options.items() if k.startswith(f"{option}.")}
            for key, value in given.items():
                command += [f"--{option}", f"{key.removeprefix(f'{option}.')}={value}"]
        super().__init__(command, self.log, pause)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def is_paused(self) -> bool:
        """Does it wait at its crash point?"""
        return self._reached.exists() and self.is_running()

    def send(self, number: signal.Signals) -> bool:
        """False if it is gone."""
        return bool(send(number, [psutil.Process(self.pid)])) if self.is_running() else False

    def log_errors(self) -> list[str]:
        """What it has said that is not just how it goes."""
        with suppress(FileNotFoundError):
            return [line for line in self.log.read_text().splitlines() if " INFO " not in line]
        return []


class Deliveries:
    """A supervisor of delivery processes, as there is one in production: who ends is started again.

    Does nothing for a stream that is not decoupled.
    """

    def __init__(self, deployment: Deployment, rng: random.Random, stack: ExitStack) -> None:
        self.store = DeliveryStore(deployment.store_url)
        self.ended_badly: list[str] = []
        """What processes that ended without being told to have said."""
        self._site = deployment
        self._rng = rng
        self._stack = stack
        self._count = rng.choice((1, 2, 2)) if deployment.setup.is_decoupled else 0
        self._started: list[DeliveryProcess] = []
        self.running: list[DeliveryProcess] = []
        """Those that shall run."""

    def keep_running(self) -> None:
        """Start again what has ended."""
        for process in list(self.running):
            if not process.is_running():
                self.running.remove(process)
                said = process.log.read_text()[-2000:] if process.log.exists() else ""
                self.ended_badly.append(f"process {process.number}, code {process.exit_code}: {said}")
        while len(self.running) < self._count:
            self._start()

    def _start(self, point: str | None = None) -> DeliveryProcess:
        process = DeliveryProcess(len(self._started), self._site, "--wait", point=point)
        self._stack.enter_context(process)
        self._started.append(process)
        self.running.append(process)
        return process

    def any(self) -> DeliveryProcess:
        return self._rng.choice(self.running)

    def at_work(self) -> DeliveryProcess | None:
        """The one that holds the stream's lease; None if the stream is not being delivered."""
        lease = self.store.lease()
        return next((one for one in self.running if lease is not None and one.pid == lease.pid), None)

    def kill(self, process: DeliveryProcess) -> int:
        self.running.remove(process)
        return process.kill()

    def only_one_that_waits_at(self, point: str) -> tuple[DeliveryProcess, int]:
        """In place of all that run, which are killed; and how many those were. `keep_running` adds the others
        again once it is killed.
        """
        killed = [self.kill(process) for process in list(self.running)]
        self._count_later, self._count = self._count, 1
        return self._start(point), len(killed)

    def kill_the_waiting(self, process: DeliveryProcess) -> None:
        self.kill(process)
        self._count = self._count_later

    def at_least(self, count: int) -> None:
        self._count = max(self._count, count)
        self.keep_running()

    def stop(self, timeout_s: float) -> None:
        """SIGTERM to all; they must end well.

        Raises:
            AssertionError: one does not.
        """
        self._count = 0
        processes, self.running = self.running, []
        for process in processes:
            process.send(signal.SIGTERM)
        for process in processes:
            code = process.wait(timeout_s)
            assert code == 0, f"delivery process {process.number} ended with {code}:\n{process.tail()}"

    def drain(self, timeout_s: float) -> int:
        """`penstock deliver --once`; its exit code."""
        process = DeliveryProcess(len(self._started), self._site, "--once")
        self._started.append(process)
        with process:
            return process.wait(timeout_s)

    def log_errors(self) -> list[str]:
        """Of all processes, in their order."""
        return [line for process in self._started for line in process.log_errors()]


# What the store says ----------------------------------------------------------------------------------


class HeldLease(NamedTuple):
    """Who delivers the stream now."""

    pid: int
    fence: int


class DeliveryStore:
    """What the manifest store says of a trial's deliveries, past the product. It may be cut off or slow."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url)
        self._is_sqlite = self._url.get_backend_name() == "sqlite"
        self._engine: sa.Engine | None = None

    def lease(self) -> HeldLease | None:
        """None also if the store cannot be read now."""
        found = self._ask(
            "SELECT holder, fence, expires_at FROM penstock_leases WHERE expires_at IS NOT NULL"
        )
        for holder, fence, expires_at in found:
            if _time(expires_at) > datetime.now(timezone.utc):
                return HeldLease(int(holder.split("/")[1]), int(fence))
        return None

    def delivered(self) -> int:
        """The last batch that it says is in the table; -1 if none, or if the store cannot be read now."""
        found = self._ask(
            "SELECT coalesce(max(batch_id), -1) FROM penstock_manifests WHERE state = 'COMMITTED'"
        )
        return int(found[0][0]) if found else -1

    def parked(self) -> str | None:
        """Why the stream is parked; None if it is not."""
        found = self._ask("SELECT parked_why, error FROM penstock_streams WHERE parked_at IS NOT NULL")
        return f"{found[0][0]}: {found[0][1]}" if found else None

    def waits(self) -> bool:
        """Does the query wait for its backlog to shrink?"""
        return bool(self._ask("SELECT 1 FROM penstock_streams WHERE waiting_since IS NOT NULL"))

    def _ask(self, query: str) -> list[Any]:
        with suppress(sa.exc.SQLAlchemyError, sqlite3.Error, OSError):
            with self._opened().connect() as connection:
                return list(connection.execute(sa.text(query)))
        return []

    def _opened(self) -> sa.Engine:
        if self._engine is None:
            self._engine = sa.create_engine(
                self._read_only() if self._is_sqlite else self._url, **self._how()
            )
        return self._engine

    def _how(self) -> dict[str, Any]:
        if self._is_sqlite:
            return {"poolclass": sa.NullPool, "connect_args": {"timeout": LOOK_S, "uri": True}}
        return {"poolclass": sa.NullPool, "connect_args": {"connect_timeout": 2}}

    def _read_only(self) -> sa.URL:
        """A look must not make the file."""
        return self._url.set(database=f"file:{self._url.database}", query={"mode": "ro", "uri": "true"})


def _time(value: object) -> datetime:
    """As SQLite and Postgres give it."""
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
