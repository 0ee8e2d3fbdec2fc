"""The conformance suite for ClickHouse tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.clickhouse import ClickHouse, clickhouse
from tests.support.clickhouse_table import ClickHouseHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.slow
class TestClickHouse(DestinationConformance):
    @pytest.fixture(scope="class")
    def server(self) -> Iterator[ClickHouse]:
        with clickhouse() as server:
            yield server

    @pytest.fixture
    def harness(self, server: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> DestinationHarness:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        return ClickHouseHarness(server)
