"""HTTP endpoints pass the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.http_rows import HttpRows
from tests.conformance.harnesses import DeduplicatingHttpHarness, HttpHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


class TestHttp(DestinationConformance):
    """Rows arrive at least once."""

    @pytest.fixture
    def harness(self, tmp_path: Path, http_service: HttpRows) -> DestinationHarness:
        return HttpHarness(tmp_path, http_service)


@pytest.mark.slow
class TestHttpWithKeys(DestinationConformance):
    """Rows arrive exactly once, as the service takes each key once."""

    @pytest.fixture
    def harness(self, tmp_path: Path, http_service: HttpRows) -> DestinationHarness:
        return DeduplicatingHttpHarness(tmp_path, http_service)
