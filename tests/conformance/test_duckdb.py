"""The conformance suite for DuckDB tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.duckdb_table import DuckDbHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.slow
class TestDuckDb(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return DuckDbHarness(tmp_path)
