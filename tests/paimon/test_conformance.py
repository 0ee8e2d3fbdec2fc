"""The conformance suite for Paimon tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.paimon_table import PaimonHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


class TestPaimon(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return PaimonHarness(tmp_path)
