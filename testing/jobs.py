"""Run a program, kill it with its child processes at a named crash point, and run it again."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..committers.crash_points import CRASH_POINTS
from ..committers.errors import ConfigurationError
from .extra import load

if TYPE_CHECKING:
    from psutil import Process

KILL_TIMEOUT_S = 10
POLL_S = 0.02
LOG_TAIL_CHARS = 6000


@dataclass(frozen=True)
class Job:
    """A program that writes with Penstock, such as `Job([sys.executable, "job.py"], log="job.log")`.

    Each method starts it again, on this machine, and leaves none of its processes running. Tested on Linux
    only.

    Args:
        command: the program and its arguments
        log: file to which its output is appended
        environment: variables in addition to those of this process
    """

    command: Sequence[str | Path]
    log: str | Path
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def run(self, timeout_s: float = 600) -> None:
        """Run the program to its end.

        Raises:
            AssertionError: the program failed, or did not end within `timeout_s` seconds. Quotes the end of
                the log.
            ConfigurationError: the program cannot be started.
        """
        with self.start() as job:
            code = job.wait(timeout_s)
        if code != 0:
            raise AssertionError(
                f"The job ended with exit code {code}. Its log {job.log} ends:\n{job.tail()}"
            )

    def kill_at(self, point: str, batch_id: int | None = None, timeout_s: float = 600) -> int:
        """Run the program until it reaches a crash point, then kill all its processes with SIGKILL.

        Args:
            point: one of `CRASH_POINTS`; docs/testing.md says when each is reached
            batch_id: the batch at which to kill; None for the first one that reaches the point

        Returns:
            the number of killed processes

        Raises:
            AssertionError: the program ended before, or did not reach the point within `timeout_s` seconds.
                Quotes the end of the log.
            ConfigurationError: the crash point does not exist, or the program cannot be started.
        """
        if point not in CRASH_POINTS:
            raise ConfigurationError(
                f"The crash point {point!r} does not exist. Choose one of: {', '.join(CRASH_POINTS)}."
            )
        place = point if batch_id is None else f"{point}@{batch_id}"
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            reached = Path(folder, f"crash-point-{place}")
            pause = {"PENSTOCK_PAUSE_AT": place, "PENSTOCK_PAUSE_FILE": str(reached)}
            with RunningJob(self.command, self.log, {**self.environment, **pause}) as job:
                job.wait_for(reached, timeout_s)
                return job.kill()

    def start(self) -> RunningJob:
        """Start the program, to kill it at any moment. Use it in a `with` statement.

        Raises:
            ConfigurationError: the program cannot be started.
        """
        return RunningJob(self.command, self.log, self.environment)


class RunningJob:
    """A running program, with its JVM and the Python workers. Created by `Job.start`.

    As a context manager, it kills all of them at the end of the block.
    """

    def __init__(
        self, command: Sequence[str | Path], log: str | Path, environment: Mapping[str, str] | None = None
    ) -> None:
        load("psutil")
        self.log = Path(log)
        with self.log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    [str(part) for part in command],
                    env={**os.environ, **(environment or {})},
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigurationError(f"{command[0]} cannot be started: {error.strerror}.") from None

    def __enter__(self) -> RunningJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Return the process id of the program itself."""
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, file: Path, timeout_s: float = 600) -> None:
        """Wait until the program or one of its child processes has created this file.

        Raises:
            AssertionError: the program ended before, or `timeout_s` seconds have passed.
        """
        deadline = time.monotonic() + timeout_s
        while not file.exists():
            if not self.is_running() and not file.exists():
                code = self._process.returncode
                raise AssertionError(
                    f"The job ended with exit code {code} before {file}. {self._last_words()}"
                )
            if time.monotonic() > deadline:
                raise AssertionError(f"{file} does not exist after {timeout_s} s. {self._last_words()}")
            time.sleep(POLL_S)

    def wait(self, timeout_s: float = 600) -> int:
        """Wait for the end of the program; its exit code.

        Raises:
            AssertionError: it has not ended after `timeout_s` seconds.
        """
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The job did not end within {timeout_s} s. {self._last_words()}") from None

    def kill(self) -> int:
        """Kill the program and its child processes with SIGKILL. Return the number of killed processes.

        They are stopped first, so that none of them notices the death of another.

        Raises:
            AssertionError: a process does not die.
        """
        deadline = time.monotonic() + KILL_TIMEOUT_S
        killed: dict[int, Process] = {}
        # A child with its own session is not found any more once its parent has ended.
        while alive := [*self._processes(), *filter(_is_alive, killed.values())]:
            if time.monotonic() > deadline:
                raise AssertionError(f"These processes do not die: {[process.pid for process in alive]}.")
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for process in alive:
                    with suppress(load("psutil").NoSuchProcess):
                        process.send_signal(number)
            killed.update({process.pid: process for process in alive})
            time.sleep(POLL_S)
        self._process.wait(KILL_TIMEOUT_S)
        return len(killed)

    def tail(self) -> str:
        """Return the end of the log."""
        return self.log.read_text(errors="replace")[-LOG_TAIL_CHARS:]

    def _last_words(self) -> str:
        return f"Its log {self.log} ends:\n{self.tail()}"

    def _processes(self) -> list[Process]:
        """Return the live processes of the program and its session: children may outlive their parents."""
        psutil = load("psutil")
        is_running = self.is_running()
        if not is_running and psutil.pid_exists(self.pid):
            return []  # another program: a process id is reused only after its whole session has ended
        found: dict[int, Process] = {}
        with suppress(psutil.NoSuchProcess):
            if is_running:
                found = {child.pid: child for child in psutil.Process(self.pid).children(recursive=True)}
        for process in psutil.process_iter():
            if _session(process.pid) == self.pid:
                found[process.pid] = process
        return [process for process in found.values() if _is_alive(process)]


def _session(pid: int) -> int | None:
    """Return the session id of a process; None if the process has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_alive(process: Process) -> bool:
    """Return True unless the process has ended or is a zombie."""
    psutil = load("psutil")
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
