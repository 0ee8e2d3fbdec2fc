"""The conformance suite for ClickHouse tables."""

from __future__ import annotations

import pytest
from tests.support.clickhouse_table import ClickHouseHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.slow
class TestClickHouse(DestinationConformance):
    @pytest.fixture
    def harness(self, clickhouse_table: ClickHouseHarness) -> DestinationHarness:
        return clickhouse_table
