"""A driver of the campaign: its program, JVM, executors and Python workers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

import psutil
from servers.processes import send
from tests.chaos.deployments import CLUSTER, Deployment
from tests.support.driver_process import SHORT_LIVED, DriverProcess

PROGRAM = Path(__file__).with_name("program.py")

Role = Literal["Python", "JVM", "executor", "planner", "task worker", "commit worker"]

_WORKERS: Mapping[str, Role] = {
    "pyspark.worker": "task worker",
    "pyspark.sql.worker.write_into_data_source": "planner",
    "pyspark.sql.worker.python_streaming_sink_runner": "commit worker",
}
"""By the module that Spark's daemon runs. The daemon itself only forks."""

_CONF = {**SHORT_LIVED, "spark.sql.shuffle.partitions": "2"}
_CONF_OF_CLUSTER = {
    "spark.executor.extraJavaOptions": SHORT_LIVED["spark.driver.extraJavaOptions"],
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "8",
}


@cache
def unprivileged() -> tuple[str, ...] | None:
    """Return the command prefix that makes permissions and full disks bind a program; None if there is none.

    Root without capabilities is an owner like any other.
    """
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    return (setpriv, "--bounding-set=-all", "--inh-caps=-all") if setpriv else None


class Driver(DriverProcess):
    """A driver starts its Spark at once, and its query on request."""

    def __init__(self, number: int, deployment: Deployment, finish: Path) -> None:
        """
        Args:
            finish: the driver streams to the end of the source and ends once this file exists
        """
        self.number = number
        self.point: str | None = None
        """The crash point where it waits: `name` in any batch, `name@batch`, or none."""
        files = deployment.root / f"driver-{number}"
        self._request = files.with_suffix(".request")
        self._events = files.with_suffix(".events")
        self._paused = files.with_suffix(".paused")
        setup = deployment.setup
        arguments = [f"penstock.{setup.format}", str(deployment.source), str(deployment.checkpoint)]
        arguments += ["--master", setup.master, "--finish", str(finish)]
        arguments += ["--request", str(self._request), "--events", str(self._events)]
        for key, value in deployment.options.items():
            arguments += ["--option", f"{key}={value}"]
        for key, value in (_CONF | (_CONF_OF_CLUSTER if setup.master == CLUSTER else {})).items():
            arguments += ["--conf", f"{key}={value}"]
        environment = {"PENSTOCK_PAUSE_FILE": str(self._paused)}
        super().__init__(arguments, files.with_suffix(".log"), environment, PROGRAM, unprivileged() or ())

    def start_query(self, point: str | None, columns: Sequence[str], partitions: int) -> None:
        """Request the start of the query.

        Args:
            point: the crash point where the driver waits
            columns: columns in addition to those of the source, as SQL expressions
            partitions: tasks in a batch
        """
        self.point = point
        request = {"point": point, "columns": [*columns], "partitions": partitions}
        written = self._request.with_suffix(".new")
        written.write_text(json.dumps(request))
        written.rename(self._request)

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def events(self, event: str) -> list[str]:
        """Return the details of all events of this kind, in order."""
        if not self._events.exists():
            return []
        lines = self._events.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [one["detail"] for one in found if one["event"] == event]

    def paused(self) -> psutil.Process | None:
        """Return the process that waits at the crash point."""
        with suppress(FileNotFoundError, ValueError, psutil.NoSuchProcess):
            process = psutil.Process(int(self._paused.read_text()))
            if process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def processes(self) -> list[psutil.Process]:
        """Return the live processes of the driver, including orphans."""
        return self._processes()

    def of_role(self, role: Role) -> list[psutil.Process]:
        return [process for process in self.processes() if self._role(process) == role]

    def _role(self, process: psutil.Process) -> Role | None:
        with suppress(psutil.NoSuchProcess):
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
        """Send SIGSTOP to all processes, including new ones. Return their number."""
        stopped: set[int] = set()
        while found := [process for process in self.processes() if process.pid not in stopped]:
            send(signal.SIGSTOP, found)
            stopped |= {process.pid for process in found}
        return len(stopped)

    def resume(self) -> None:
        send(signal.SIGCONT, self.processes())

    def wait_for_end(self, timeout_s: float) -> bool:
        """Wait until no process is left. Return False if there still is one after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.processes():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True
