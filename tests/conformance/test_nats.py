"""NATS passes the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.lossy_tcp import LossyTcp, lossy_tcp
from servers.nats import NatsServer
from tests.conformance.harnesses import NatsHarness, NatsIdHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.fixture(scope="module")
def proxy(nats_process: NatsServer) -> Iterator[LossyTcp]:
    with lossy_tcp(nats_process.port) as started:
        yield started


@pytest.mark.campaign
class TestNats(DestinationConformance):
    """Rows arrive at least once: their ids are derived from Spark's partitions."""

    @pytest.fixture
    def harness(
        self, tmp_path: Path, nats_service: NatsServer, proxy: LossyTcp
    ) -> Iterator[DestinationHarness]:
        with NatsHarness(tmp_path, nats_service, proxy).created() as harness:
            yield harness


@pytest.mark.slow
class TestNatsWithIds(DestinationConformance):
    """Rows with ids arrive exactly once. Each test loses the first requests or responses with messages."""

    @pytest.fixture
    def harness(
        self, tmp_path: Path, nats_service: NatsServer, proxy: LossyTcp
    ) -> Iterator[DestinationHarness]:
        with NatsIdHarness(tmp_path, nats_service, proxy).created() as harness:
            yield harness.lossy()
