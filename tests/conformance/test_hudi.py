"""Hudi tables pass the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance.harnesses import HudiHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


class TestHudi(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return HudiHarness(tmp_path)


@pytest.mark.campaign
class TestHudi8(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return HudiHarness(tmp_path, version=8)


@pytest.mark.campaign
class TestHudi9(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DestinationHarness:
        return HudiHarness(tmp_path, version=9)
