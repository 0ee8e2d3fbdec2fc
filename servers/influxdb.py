"""Runs InfluxDB on the loopback: Debian's package, which is unpacked and not installed."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from servers.debian import unpacked
from servers.ports import free_port, wait_for

_CONFIGURATION = """
reporting-disabled = true
bind-address = "127.0.0.1:{rpc}"
[meta]
  dir = "{folder}/meta"
[data]
  dir = "{folder}/data"
  wal-dir = "{folder}/wal"
  query-log-enabled = false
[http]
  bind-address = "127.0.0.1:{port}"
  log-enabled = false
[monitor]
  store-enabled = false
"""


@dataclass(frozen=True)
class InfluxServer:
    """A running server. Each test takes a database of its own."""

    url: str

    def query(self, statement: str, database: str = "") -> list[dict[str, Any]]:
        """Return the points of the only result, with times in microseconds."""
        words = urlencode({"q": statement, "db": database, "epoch": "u"})
        with urlopen(f"{self.url}/query", words.encode()) as response:
            (result,) = json.load(response)["results"]
        return [
            dict(zip(series["columns"], values, strict=True))
            for series in result.get("series", ())
            for values in series["values"]
        ]

    def write(self, database: str, line: str) -> None:
        words = urlencode({"db": database, "precision": "u"})
        urlopen(f"{self.url}/write?{words}", line.encode()).close()


@contextmanager
def influx_server() -> Iterator[InfluxServer]:
    """
    Raises:
        DebianUnreachableError: it cannot be downloaded.
    """
    program = unpacked("influxdb", ("influxdb",)) / "usr" / "bin" / "influxd"
    port, rpc = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "influxdb.conf"
        configuration.write_text(_CONFIGURATION.format(folder=folder, port=port, rpc=rpc))
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen([program, "-config", configuration], stdout=log, stderr=log)
        try:
            wait_for(port, server)
            yield InfluxServer(f"http://127.0.0.1:{port}")
        finally:
            server.kill()
            server.wait()
