"""The plug-in passes the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.conformance import DestinationConformance, DestinationHarness


class TestJsonLines(DestinationConformance):
    @pytest.fixture
    def harness(self, plug_in: Path, tmp_path: Path) -> DestinationHarness:
        from tests.plug_in.harness import JsonLinesHarness

        return JsonLinesHarness(tmp_path)
