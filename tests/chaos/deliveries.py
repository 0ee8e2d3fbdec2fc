"""The delivery processes of a decoupled stream, their supervisor, and the records of the store on them."""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from typing import Any, NamedTuple

import psutil
import sqlalchemy as sa
from servers.processes import send
from tests.chaos.deployments import Deployment
from tests.chaos.disks import unprivileged

from penstock.testing import RunningJob

LEASE_S = 3
READ_S_MAX = 2


class DeliveryProcess(RunningJob):
    """One `penstock deliver`."""

    def __init__(
        self, number: int, deployment: Deployment, *arguments: str, point: str | None = None
    ) -> None:
        """
        Args:
            point: the crash point where the process waits
        """
        self.number = number
        self.log = deployment.root / f"delivery-{number}.log"
        self._paused = deployment.root / f"delivery-{number}.paused"
        pause = {"PENSTOCK_PAUSE_AT": point, "PENSTOCK_PAUSE_FILE": str(self._paused)} if point else {}
        command = [*(unprivileged() or ()), sys.executable, "-m", "penstock.cli", "deliver"]
        command += ["--store", deployment.store_url, "--lease-seconds", str(LEASE_S), *arguments]
        for key, value in deployment.options.items():
            prefix, separator, name = key.partition(".")
            if separator:  # storage.… or catalog.…
                command += [f"--{prefix}", f"{name}={value}"]
            elif key in ("accessKeyId", "secretAccessKey"):
                command += ["--storage", f"{key}={value}"]
        super().__init__(command, self.log, pause)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def is_paused(self) -> bool:
        """Return True if the process waits at its crash point."""
        return self._paused.exists() and self.is_running()

    def send(self, number: signal.Signals) -> bool:
        """Return False if the process has ended."""
        return bool(send(number, [psutil.Process(self.pid)])) if self.is_running() else False

    def log_errors(self) -> list[str]:
        """Return the lines of the log above the level INFO."""
        with suppress(FileNotFoundError):
            return [line for line in self.log.read_text().splitlines() if " INFO " not in line]
        return []


class Deliveries:
    """A supervisor, as in production: it starts again the delivery processes that have ended.

    Does nothing for a coupled stream.
    """

    def __init__(self, deployment: Deployment, rng: random.Random, stack: ExitStack) -> None:
        self.store = DeliveryStore(deployment.store_url)
        self.unexpected_ends: list[str] = []
        """Number, exit code and log of each process that ended by itself."""
        self.running: list[DeliveryProcess] = []
        self._deployment = deployment
        self._rng = rng
        self._stack = stack
        self._count = rng.choice((1, 2, 2)) if deployment.setup.is_decoupled else 0
        self._started: list[DeliveryProcess] = []

    def keep_running(self) -> None:
        """Start again the processes that have ended."""
        for process in list(self.running):
            if not process.is_running():
                self.running.remove(process)
                log = process.log.read_text()[-2000:] if process.log.exists() else ""
                self.unexpected_ends.append(f"process {process.number}, code {process.exit_code}: {log}")
        while len(self.running) < self._count:
            self._start()

    def _start(self, point: str | None = None) -> DeliveryProcess:
        process = DeliveryProcess(len(self._started), self._deployment, "--wait", point=point)
        self._stack.enter_context(process)
        self._started.append(process)
        self.running.append(process)
        return process

    @property
    def ends(self) -> int:
        """The number of processes that do not run any more."""
        return len(self._started) - len(self.running)

    def any(self) -> DeliveryProcess:
        return self._rng.choice(self.running)

    def at_work(self) -> tuple[DeliveryProcess, Lease] | None:
        """Return the process that holds the stream's lease; None if nothing is being delivered."""
        lease = self.store.lease()
        if lease is None:
            return None
        return next(((process, lease) for process in self.running if process.pid == lease.pid), None)

    def kill(self, process: DeliveryProcess) -> None:
        if process in self.running:
            self.running.remove(process)
        process.kill()

    @contextmanager
    def only_one_that_waits_at(self, point: str) -> Iterator[tuple[DeliveryProcess, int]]:
        """Replace all processes by one that waits at a crash point, and kill it at the end of the block.

        Yields:
            the process, and the number of the processes that were killed for it
        """
        killed = list(self.running)
        for process in killed:
            self.kill(process)
        count, self._count = self._count, 1
        process = self._start(point)
        try:
            yield process, len(killed)
        finally:
            self.kill(process)
            self._count = count

    def at_least(self, count: int) -> None:
        self._count = max(self._count, count)
        self.keep_running()

    def stop(self, timeout_s: float) -> None:
        """Send SIGTERM to all processes; they must end with exit code 0.

        Raises:
            AssertionError: a process does not.
        """
        self._count = 0
        processes, self.running = self.running, []
        for process in processes:
            process.send(signal.SIGTERM)
        for process in processes:
            code = process.wait(timeout_s)
            assert code == 0, f"delivery process {process.number} ended with {code}:\n{process.tail()}"

    def drain(self, timeout_s: float) -> int:
        """Run `penstock deliver --once`. Return its exit code."""
        process = DeliveryProcess(len(self._started), self._deployment, "--once")
        self._started.append(process)
        with process:
            return process.wait(timeout_s)

    def log_errors(self) -> list[str]:
        return [line for process in self._started for line in process.log_errors()]


class Lease(NamedTuple):
    """The lease of a stream, and the process that holds it."""

    pid: int
    fence: int


class DeliveryStore:
    """The manifest store of one stream, read without Penstock. It may be unreachable or slow."""

    def __init__(self, url: str) -> None:
        address = sa.make_url(url)
        arguments: dict[str, Any] = {"connect_timeout": READ_S_MAX}
        if address.get_backend_name() == "sqlite":
            # Read-only: otherwise SQLite creates a missing file.
            address = address.set(database=f"file:{address.database}", query={"mode": "ro", "uri": "true"})
            arguments = {"timeout": READ_S_MAX, "uri": True}
        self._engine = sa.create_engine(address, poolclass=sa.NullPool, connect_args=arguments)

    def lease(self) -> Lease | None:
        """Return the lease; None also if the store cannot be read now."""
        query = "SELECT holder, fence, expires_at FROM penstock_leases WHERE expires_at IS NOT NULL"
        for holder, fence, expires_at in self._rows(query):
            if _time(expires_at) > datetime.now(timezone.utc):
                return Lease(int(holder.split("/")[1]), int(fence))
        return None

    def delivered(self) -> int:
        """Return the last batch in the table; -1 if there is none, or the store cannot be read now."""
        query = "SELECT coalesce(max(batch_id), -1) FROM penstock_manifests WHERE state = 'COMMITTED'"
        return next((int(batch_id) for (batch_id,) in self._rows(query)), -1)

    def parked(self) -> str | None:
        """Return why the stream is parked; None if it is not."""
        query = "SELECT parked_why, error FROM penstock_streams WHERE parked_at IS NOT NULL"
        return next((f"{why}: {error}" for why, error in self._rows(query)), None)

    def is_backlog_full(self) -> bool:
        """Return True if the query waits for its backlog to shrink."""
        return bool(self._rows("SELECT 1 FROM penstock_streams WHERE waiting_since IS NOT NULL"))

    def _rows(self, query: str) -> list[Any]:
        with suppress(sa.exc.SQLAlchemyError, sqlite3.Error, OSError), self._engine.connect() as connection:
            return list(connection.execute(sa.text(query)))
        return []


def _time(value: object) -> datetime:
    """Return a time as SQLite and Postgres store it."""
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
