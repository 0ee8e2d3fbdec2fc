"""Processes of the benchmarks of decoupled delivery."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def process(command: Sequence[str], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command in its own process group, and kill the group at the end of the block."""
    started = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def wait_for(condition: Any, seconds: float, what: str, root: Path) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(
                f"no {what} after {seconds:.0f} s:\n{(root / 'processes.log').read_text()[-4000:]}"
            )
        time.sleep(0.5)
