"""The conformance suite for Lance tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.lance_table import LanceHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


class TestLance(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return LanceHarness(tmp_path)
