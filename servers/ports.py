"""Ports on the loopback, for servers of tests and benchmarks."""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import ExitStack
from typing import Any

START_S_MAX = 60


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def wait_for(port: int, server: subprocess.Popen[Any]) -> None:
    """Wait until the server accepts connections on the port.

    Raises:
        AssertionError: it has ended, or does not after `START_S_MAX` seconds.
    """
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            code = server.poll()
            assert code is None, f"the server of port {port} ended with exit code {code}"
            assert time.monotonic() < deadline, f"no server accepts connections on port {port}"
            time.sleep(0.1)
        else:
            return


def free_ports(count: int) -> list[int]:
    """Return different ports."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
