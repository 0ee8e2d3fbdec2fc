"""The conformance suite for ClickHouse tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.clickhouse import ClickHouse, clickhouse
from tests.support.clickhouse_table import ClickHouseHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.fixture(scope="module")
def server() -> Iterator[ClickHouse]:
    with clickhouse() as server:
        yield server


@pytest.mark.slow
class TestClickHouse(DestinationConformance):
    @pytest.fixture
    def harness(self, server: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> DestinationHarness:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        return ClickHouseHarness(server)
