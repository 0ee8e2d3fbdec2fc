"""A server of InfluxDB for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.influxdb import InfluxServer, influx_server
from tests.support.unreachable import skipped_if_unreachable


@pytest.fixture(scope="session")
def influxdb() -> Iterator[InfluxServer]:
    with skipped_if_unreachable(), influx_server() as server:
        yield server
