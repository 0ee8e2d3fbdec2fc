"""Hudi tables pass the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance.harnesses import HudiHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.parametrize(
    "version", [6, pytest.param(8, marks=pytest.mark.campaign), pytest.param(9, marks=pytest.mark.campaign)]
)
class TestHudi(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path, version: int) -> DestinationHarness:
        return HudiHarness(tmp_path, version=version)
