"""A server of InfluxDB for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.debian import DebianUnreachableError
from servers.influxdb import InfluxServer, influx_server


@pytest.fixture(scope="session")
def influxdb() -> Iterator[InfluxServer]:
    try:
        with influx_server() as server:
            yield server
    except DebianUnreachableError as error:
        pytest.skip(str(error))
