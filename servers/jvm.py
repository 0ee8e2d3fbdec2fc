"""Runs a Java server on the loopback in a separate process."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from servers.maven import java

START_S_MAX = 60


@contextmanager
def java_server(
    arguments: Sequence[str],
    folder: Path,
    probe: Callable[[], object],
    heap: str = "256m",
    file_bytes_max: int | None = None,
) -> Iterator[None]:
    """Start the server and wait until it responds.

    Args:
        arguments: of `java`, from the class path on
        folder: the server's working directory, for its log
        probe: connects to the server; raises OSError while it does not respond
        file_bytes_max: the server cannot write a larger file
    """
    command = [java(), f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *arguments]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    with log.open("ab") as output:  # some servers write their own logs into the working directory
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder)
    if file_bytes_max is not None:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
    try:
        _wait_for(probe, server, log)
        yield
    finally:
        server.kill()
        server.wait()


def _wait_for(probe: Callable[[], object], server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            probe()
        except OSError:
            assert server.poll() is None, f"the server ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"the server did not start:\n{log.read_text()}"
            time.sleep(0.1)
        else:
            return
