"""The driver and the delivery process of a demo with several destinations, which it kills."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

from notebooks.demo import DemoFailedError
from notebooks.lake import Lake
from notebooks.screen import print_text, shown
from notebooks.store import PENSTOCK, streams

from penstock.testing import RunningJob

TIMEOUT_S = 900
POLL_S = 1.0


class Processes:
    """Starts and kills the processes of one query, and asks its store about them.

    Args:
        program: the driver
        targets: names of the destinations by the names of the query's targets
        environment: of both processes
        stack: ends the processes
        store: URL of the store; None: it is in the checkpoint directory
    """

    def __init__(
        self,
        lake: Lake,
        program: Path,
        targets: Mapping[str, str],
        environment: Mapping[str, str],
        stack: ExitStack,
        store: str | None = None,
    ) -> None:
        self._lake = lake
        self._program = program
        self._targets = targets
        self._environment = environment
        self._stack = stack
        self.checkpoint = lake.root / "checkpoint"
        self._store = store
        self.delivery_log = lake.root / "delivery.log"
        self.kills: dict[str, datetime] = {}

    def start_driver(self, *arguments: str) -> RunningJob:
        environment = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false "
            "pyspark-shell",
            "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
            **self._environment,
        }
        command: list[str | Path] = [sys.executable, self._program, *arguments]
        return self._stack.enter_context(RunningJob(command, self._lake.log, environment))

    def start_delivery(self) -> RunningJob:
        store = self._store or f"sqlite:///{self.checkpoint}/penstock.sqlite"
        command = [str(PENSTOCK), "deliver", "--wait", "--lease-seconds", "5", "--store", store]
        return self._stack.enter_context(RunningJob(command, self.delivery_log, self._environment))

    def kill(self, name: str, job: RunningJob) -> None:
        count = sum(known.startswith(name) for known in self.kills)
        self.kills[f"{name} killed{' again' * count}"] = now()
        print_text(f"SIGKILL of the {name}, {job.kill()} processes", style="bold red")

    def wait(self, what: str, is_so: Callable[[], bool], driver: RunningJob | None = None) -> None:
        """
        Raises:
            DemoFailedError: the driver has ended, or it takes too long.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while not is_so():
            if driver is not None and not driver.is_running() and driver.wait() != 0:
                raise DemoFailedError(f"the driver failed before {what}. Its log ends:\n{driver.tail()}")
            if time.monotonic() > deadline:
                raise DemoFailedError(f"not after {TIMEOUT_S} s: {what}. See {shown(self.delivery_log)}")
            time.sleep(POLL_S)
        print_text(f"{what}: {self.words()}")

    def wait_for_end(self, driver: RunningJob) -> None:
        """
        Raises:
            DemoFailedError: the driver fails.
        """
        if driver.wait() != 0:
            raise DemoFailedError(f"the driver failed. Its log ends:\n{driver.tail()}")

    # What the store says ------------------------------------------------------------------------------

    def _streams(self) -> dict[str, dict[str, object]]:
        """By target."""
        found = streams(self._store or self.checkpoint) if self.checkpoint.exists() else []
        return {str(stream["query_name"]).rpartition(".")[2]: stream for stream in found}

    def pending(self) -> dict[str, int]:
        """Number of batches that wait for their delivery."""
        return {target: int(str(stream["pending"])) for target, stream in self._streams().items()}

    def committed_rows(self) -> dict[str, int]:
        return {target: int(str(stream["committed_rows"])) for target, stream in self._streams().items()}

    def delivered(self) -> list[int]:
        """Number of batches that were delivered to each target."""
        known = self._streams()
        return [
            int(str(known[target]["committed_batches"])) if target in known else 0 for target in self._targets
        ]

    def prepared(self) -> int:
        """The last batch; -1 if there is none."""
        last = self._streams().get(next(iter(self._targets)), {}).get("last_batch")
        return int(last["batch_id"]) if isinstance(last, dict) else -1

    def is_ahead(self, batch_id: int) -> Callable[[], bool]:
        return lambda: self.prepared() >= batch_id + 2

    def is_delivered(self) -> bool:
        return set(self.pending().values()) == {0}

    def words(self) -> str:
        waiting = sorted(self.pending().items())
        return ", ".join(f"{self._targets[target]} {waits} waiting" for target, waits in waiting)


def now() -> datetime:
    return datetime.now(timezone.utc)
