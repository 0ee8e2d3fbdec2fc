"""HTTP endpoints pass the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.http_rows import HttpRows
from tests.conformance.harnesses import DeduplicatingHttpHarness, HttpHarness, HttpResourcesHarness
from tests.support.lossy_requests import ProxyOf

from penstock.testing.conformance import DestinationConformance, DestinationHarness
from penstock.testing.conformance.upserts import UpsertClaims


@pytest.mark.parametrize(
    "kind", [DeduplicatingHttpHarness, pytest.param(HttpHarness, marks=pytest.mark.campaign)], scope="class"
)
class TestHttp(DestinationConformance):
    """Rows arrive at least once; exactly once where the service takes each key once. There, each test loses
    the first requests or responses with rows.
    """

    @pytest.fixture
    def harness(
        self, tmp_path: Path, http_service: HttpRows, proxy_of: ProxyOf, kind: type[HttpHarness]
    ) -> DestinationHarness:
        harness = kind(tmp_path, http_service, proxy_of(http_service.base))
        return harness.lossy() if harness.promises.is_exactly_once else harness


@pytest.mark.campaign
class TestHttpResources(UpsertClaims):
    """Each key has a URL, which requests replace and delete. Each test loses the first requests or responses
    with rows.
    """

    @pytest.fixture
    def harness(self, tmp_path: Path, http_service: HttpRows, proxy_of: ProxyOf) -> DestinationHarness:
        http_service.clear()
        return HttpResourcesHarness(tmp_path, http_service, proxy_of(http_service.base)).lossy()
