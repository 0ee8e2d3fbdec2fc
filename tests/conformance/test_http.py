"""HTTP endpoints pass the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.http_rows import HttpRows
from tests.conformance.harnesses import DeduplicatingHttpHarness, HttpHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.parametrize(
    "kind", [HttpHarness, pytest.param(DeduplicatingHttpHarness, marks=pytest.mark.slow)], scope="class"
)
class TestHttp(DestinationConformance):
    """Rows arrive at least once; exactly once where the service takes each key once."""

    @pytest.fixture
    def harness(self, tmp_path: Path, http_service: HttpRows, kind: type[HttpHarness]) -> DestinationHarness:
        return kind(tmp_path, http_service)
