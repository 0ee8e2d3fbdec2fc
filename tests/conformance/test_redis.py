"""Redis passes the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.redis import RedisServer
from tests.conformance.harnesses import RedisHarness, RedisStreamHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [RedisHarness, pytest.param(RedisStreamHarness, marks=pytest.mark.campaign)], scope="class"
)
class TestRedis(DestinationConformance):
    """Rows arrive exactly once by their key; in streams at least once."""

    @pytest.fixture
    def harness(
        self, tmp_path: Path, redis_service: RedisServer, kind: type[RedisHarness]
    ) -> DestinationHarness:
        return kind(tmp_path, redis_service)
