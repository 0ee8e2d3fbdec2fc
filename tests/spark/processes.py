"""Start a driver program, wait until it reaches a crash point, and kill it with all its children.

The kill tests use it, and the demo.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

DRIVER = Path(__file__).with_name("stream_driver.py")

SHORT_LIVED = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Configuration of a Spark that lives for seconds: its JVM compiles fast rather than well."""


class DriverProcess:
    """A driver program: this Python, its JVM, and the Python workers below it.

    As a context manager it leaves no process behind.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        program: Path = DRIVER,
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(program), *arguments],
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, **(environment or {})},
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running():
            self.kill()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, file: Path, timeout_s: float = 120) -> None:
        """Wait until `file` is there; an error with the end of the log if the driver ends before."""
        deadline = time.monotonic() + timeout_s
        while not file.exists():
            if not self.is_running() or time.monotonic() > deadline:
                raise AssertionError(f"{file.name} was never reached; the driver's log ends:\n{self.tail()}")
            time.sleep(0.02)

    def kill(self) -> int:
        """SIGKILL to the driver and everything it started; the number of processes killed."""
        tree = [*psutil.Process(self._process.pid).children(recursive=True)]
        for process in [psutil.Process(self._process.pid), *tree]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait()
        psutil.wait_procs(tree, timeout=10)
        return 1 + len(tree)

    def wait(self, timeout_s: float = 180) -> int:
        """Wait for the end of the program; its exit code."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the driver did not end within {timeout_s} s:\n{self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]
