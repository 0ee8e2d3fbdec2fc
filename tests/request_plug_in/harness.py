"""The harness of the request-based plug-in for the conformance suite."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from penstock_influxdb import DESTINATION
from servers.influxdb import InfluxServer

from penstock.testing.conformance import SECRET, RequestHarness


class InfluxHarness(RequestHarness):
    """A measurement in a database of its own. The times are the ids."""

    destination = DESTINATION
    secrets: ClassVar = {"token": SECRET}
    promises = replace(
        RequestHarness.promises,
        name="Measurements of InfluxDB (the example of a request-based plug-in)",
        is_exactly_once=True,
    )
    row_bytes = 60_000  # a field has at most 64 kB
    task_bytes_max = 32 * 1024 * 1024

    def __init__(self, folder: Path, server: InfluxServer) -> None:
        super().__init__(folder)
        self._server, self._database = server, f"d{uuid.uuid4().hex}"

    def create(self) -> None:
        self._server.query(f"CREATE DATABASE {self._database}")

    @property
    def options(self) -> dict[str, str]:
        place = {"url": self._server.url, "database": self._database, "time": "id"}
        return {**place, **self.row_log_options}

    @property
    def unreachable_options(self) -> dict[str, str]:
        return {**self.secret_options, "url": f"http://127.0.0.1:{self.unreachable_port}", "retryFor": "1s"}

    def points(self) -> list[dict[str, Any]]:
        return self._server.query("SELECT * FROM rows", self._database)

    def ids(self) -> list[int]:
        return [point["time"] for point in self.points()]

    def append(self, row_id: int) -> None:
        self._server.write(self._database, f"rows count=1i {row_id}")

    def drop(self) -> None:
        self._server.query("DROP MEASUREMENT rows", self._database)
