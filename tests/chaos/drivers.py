"""A driver of the campaign as seen from outside: its processes by what they do, and how they are hit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal

import psutil
from servers.processes import send
from tests.support.driver_process import DriverProcess

PROGRAM = Path(__file__).with_name("driver.py")
NEEDS_OPERATOR = 4
"""Exit code of the program: the sink says that somebody has to decide something."""

Role = Literal["Python", "JVM", "executor", "planner", "task worker", "commit worker"]

_WORKERS: Mapping[str, Role] = {
    "pyspark.worker": "task worker",
    "pyspark.sql.worker.write_into_data_source": "planner",
    "pyspark.sql.worker.python_streaming_sink_runner": "commit worker",
}
"""By the module that Spark's daemon is told to run. The daemon itself only forks."""

_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


@cache
def unprivileged() -> tuple[str, ...] | None:
    """What to start a program with so that permissions and full disks bind it; None if that is not possible.

    Root without capabilities is an owner like any other.
    """
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    return (setpriv, "--bounding-set=-all", "--inh-caps=-all") if setpriv else None


class Driver(DriverProcess):
    """The driver program, its JVM, executors and Python workers: all that is in its session."""

    def __init__(self, number: int, folder: Path, arguments: Sequence[str]) -> None:
        self.number = number
        self.point: str | None = None
        """The crash point where it waits: `name` in any batch, `name@batch`, or none."""
        self._orders = folder / f"driver-{number}.orders"
        self._events = folder / f"driver-{number}.events"
        self._paused = folder / f"driver-{number}.paused"
        super().__init__(
            [*arguments, "--orders", str(self._orders), "--events", str(self._events)],
            folder / f"driver-{number}.log",
            {"PENSTOCK_PAUSE_FILE": str(self._paused)},
            PROGRAM,
            unprivileged() or (),
        )

    def go(self, point: str | None, columns: Sequence[str] = (), partitions: int = 1) -> None:
        """Let it start its query.

        Args:
            point: the crash point where it shall wait
            columns: of the query beyond those of the source, as SQL expressions
            partitions: tasks in a batch
        """
        self.point = point
        orders = {"point": point, "columns": [*columns], "partitions": partitions}
        written = self._orders.with_suffix(".new")
        written.write_text(json.dumps(orders))
        written.rename(self._orders)

    # What it is doing ---------------------------------------------------------------------------------

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def events(self, event: str) -> list[str]:
        """Details of all events of this kind, in order."""
        if not self._events.exists():
            return []
        lines = self._events.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [one["detail"] for one in found if one["event"] == event]

    def paused(self) -> psutil.Process | None:
        """The process that has reached the crash point, and is waiting there for its end."""
        with suppress(FileNotFoundError, ValueError, *_GONE):
            process = psutil.Process(int(self._paused.read_text()))
            if process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def processes(self) -> list[psutil.Process]:
        """All that are alive, also when their parents are gone."""
        return self._processes()

    def of_role(self, role: Role) -> list[psutil.Process]:
        return [process for process in self.processes() if self._role(process) == role]

    def _role(self, process: psutil.Process) -> Role | None:
        with suppress(*_GONE):
            command = process.cmdline()
            if process.pid == self.pid:
                return "Python"
            if process.name() == "java":
                return "executor" if any("CoarseGrainedExecutor" in word for word in command) else "JVM"
            parent = process.parent()
            if command[-2:-1] == ["pyspark.daemon"] and parent is not None and parent.cmdline() == command:
                return _WORKERS.get(command[-1])
        return None

    def stop(self) -> int:
        """SIGSTOP to every process of the driver, also to those that are made meanwhile; how many."""
        stopped: set[int] = set()
        while found := [process for process in self.processes() if process.pid not in stopped]:
            send(signal.SIGSTOP, found)
            stopped |= {process.pid for process in found}
        return len(stopped)

    def resume(self) -> None:
        send(signal.SIGCONT, self.processes())

    def wait_for_end(self, timeout_s: float) -> bool:
        """True if no process is left within this time."""
        deadline = time.monotonic() + timeout_s
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


# Signals ----------------------------------------------------------------------------------------------


@contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """SIGSTOP to these processes, for the time of the block."""
    send(signal.SIGSTOP, processes)
    try:
        yield
    finally:
        send(signal.SIGCONT, processes)
