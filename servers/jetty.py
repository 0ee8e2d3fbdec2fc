"""A server made by Jetty's XML from jars of Maven, on the loopback, in a process of its own."""

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
    fixture: Path, warehouse: Path, properties: Mapping[str, str], ask: Callable[[int], object]
) -> Iterator[int]:
    """Its port, once it answers.

    Args:
        fixture: the folder with `pom.xml` and `server.xml`
        warehouse: the server's folder, which gets its log too
        properties: for `server.xml`, beside `port`
        ask: of the port; raises OSError as long as nobody answers

    Raises:
        MavenUnreachableError: its jars are not to be had.
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
    with log.open("ab") as output:  # some servers write logs of their own where they run
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=warehouse)
    try:
        _wait_for(lambda: ask(port), server, log)
        yield port
    finally:
        server.kill()
        server.wait()


def _wait_for(ask: Callable[[], object], server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            ask()
        except OSError:
            assert server.poll() is None, f"the server ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"the server did not start:\n{log.read_text()}"
            time.sleep(0.1)
        else:
            return
