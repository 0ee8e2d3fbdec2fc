"""Redis passes the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.lossy_tcp import LossyTcp, lossy_tcp
from servers.redis import RedisServer
from tests.conformance.harnesses import (
    RedisFenceHarness,
    RedisHarness,
    RedisRowHarness,
    RedisStreamHarness,
)

from penstock.testing.conformance import DestinationConformance, DestinationHarness
from penstock.testing.conformance.cleaning import CleaningClaims
from penstock.testing.conformance.deliveries import DeliveryClaims
from penstock.testing.conformance.upserts import UpsertClaims


@pytest.fixture(scope="module")
def proxy(redis_process: RedisServer) -> Iterator[LossyTcp]:
    with lossy_tcp(redis_process.port) as started:
        yield started


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [RedisHarness, pytest.param(RedisStreamHarness, marks=pytest.mark.campaign)], scope="class"
)
class TestRedis(DestinationConformance):
    """Rows arrive exactly once by their key, although each test loses the first requests or responses with
    rows; in streams at least once.
    """

    @pytest.fixture
    def harness(
        self, tmp_path: Path, redis_service: RedisServer, proxy: LossyTcp, kind: type[RedisHarness]
    ) -> DestinationHarness:
        harness = kind(tmp_path, redis_service, proxy)
        return harness.lossy() if harness.promises.is_exactly_once else harness


@pytest.mark.slow
class TestRedisWithTheFence(DeliveryClaims, CleaningClaims):
    """Rows arrive in a stream exactly once, although each test loses the first requests or responses with
    rows. The other claims are of coupled queries.
    """

    @pytest.fixture
    def harness(self, tmp_path: Path, redis_service: RedisServer, proxy: LossyTcp) -> DestinationHarness:
        return RedisFenceHarness(tmp_path, redis_service, proxy).lossy()


@pytest.mark.slow
@pytest.mark.campaign
class TestRedisRows(UpsertClaims):
    """Rows are hashes, which requests replace and delete. Each test loses the first requests or responses."""

    @pytest.fixture
    def harness(self, tmp_path: Path, redis_service: RedisServer, proxy: LossyTcp) -> DestinationHarness:
        return RedisRowHarness(tmp_path, redis_service, proxy).lossy()
