"""Runs ClickHouse on the loopback: chDB, its engine, behind its HTTP interface (`clickhouse_server`). Tests
can kill and restart it.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import uuid
from base64 import b64encode
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil
from servers.ports import free_port, wait_for
from servers.processes import send, stopped

USER, PASSWORD = "penstock", "geheim-4711"


class ClickHouse:
    """A server that can be started again with the same data and port.

    Args:
        certificates: folder of `make_certificates`, to speak TLS
    """

    def __init__(self, folder: Path, certificates: Path | None = None) -> None:
        self._folder, self.data, self._certificates = folder, folder / "data", certificates
        self.port = free_port()
        self.start()

    def start(self) -> None:
        """Start the server and wait until it responds."""
        program = Path(__file__).with_name("clickhouse_server.py")
        tls = [] if self._certificates is None else [str(self._certificates)]
        command = [sys.executable, str(program), str(self.port), str(self.data), USER, PASSWORD, *tls]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self.port, self._process)

    def kill(self) -> int:
        """Send SIGKILL to the server; return the number of processes."""
        killed = send(signal.SIGKILL, [psutil.Process(self._process.pid)])
        self._process.wait()
        return killed

    def stopped(self) -> AbstractContextManager[None]:
        """Suspend the server with SIGSTOP during the block."""
        return stopped([psutil.Process(self._process.pid)])

    @property
    def environment(self) -> dict[str, str]:
        """How commands connect to it without a URL."""
        return {
            "CLICKHOUSE_HOST": "127.0.0.1",
            "CLICKHOUSE_PORT": str(self.port),
            "CLICKHOUSE_USER": USER,
            "CLICKHOUSE_PASSWORD": PASSWORD,
        }

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        """Run a query as another user of the server would; return its rows."""
        login = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        settings = urlencode({"default_format": "JSONCompactEachRow"})
        with closing(self._connection()) as connection:
            connection.request("POST", f"/?{settings}", query.encode(), {"Authorization": f"Basic {login}"})
            response = connection.getresponse()
            content = response.read().decode()
        assert response.status == 200, content
        return [tuple(json.loads(line)) for line in content.splitlines()]

    def _connection(self) -> http.client.HTTPConnection:
        if self._certificates is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        context = ssl.create_default_context(cafile=self._certificates / "ca.pem")
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)

    def new_url(self, user: str = USER, password: str = PASSWORD) -> str:
        """Create an empty database and return its URL."""
        name = f"t{uuid.uuid4().hex}"
        self.sql(f"CREATE DATABASE {name} ENGINE = Atomic")
        scheme = "http" if self._certificates is None else "https"
        return f"{scheme}://{user}:{password}@127.0.0.1:{self.port}/{name}"


@contextmanager
def clickhouse(certificates: Path | None = None) -> Iterator[ClickHouse]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-clickhouse-"))
    try:
        server = ClickHouse(folder, certificates)
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
