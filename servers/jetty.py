"""Runs a Java server, configured in Jetty's XML, from Maven jars on the loopback in a separate process."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from servers.maven import classpath, java

START_S_MAX = 60


@contextmanager
def jetty_server(
    fixture: Path, warehouse: Path, properties: Mapping[str, str], probe: Callable[[int], object]
) -> Iterator[int]:
    """Start the server, wait until it responds, and yield its port.


    Args:
        fixture: the folder with `pom.xml` and `server.xml`
        warehouse: the server's folder, also for its log
        properties: for `server.xml`, in addition to `port`
        probe: connects to the port; raises OSError while the server does not respond


    Raises:
        MavenUnreachableError: its jars cannot be downloaded.
    """
    jars = classpath(fixture / "pom.xml")
    warehouse.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        java(),
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dwarehouse={warehouse.as_uri()}",
        *("-cp", f"{fixture}:{jars}", "org.eclipse.jetty.xml.XmlConfiguration"),
        f"port={port}",
        *(f"{name}={value}" for name, value in properties.items()),
        str(fixture / "server.xml"),
    ]
    log = warehouse / "server.log"
    with log.open("ab") as output:  # some servers write their own logs into the working directory
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=warehouse)
    try:
        _wait_for(lambda: probe(port), server, log)
        yield port
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
