"""The AWS services pass the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.aws import KEY, SECRET, AwsServer
from tests.conformance.harnesses import (
    AWS,
    AwsHarness,
    DynamoDbHarness,
)
from tests.support.lossy_requests import ProxyOf

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [kind if kind is DynamoDbHarness else pytest.param(kind, marks=pytest.mark.campaign) for kind in AWS],
    scope="class",
)
class TestAws(DestinationConformance):
    """Rows arrive at least once; exactly once where the service knows their keys or ids. There, each test
    loses the first requests or responses with rows.
    """

    @pytest.fixture
    def harness(
        self,
        tmp_path: Path,
        aws_service: AwsServer,
        proxy_of: ProxyOf,
        kind: type[AwsHarness],
        monkeypatch: pytest.MonkeyPatch,
    ) -> Iterator[DestinationHarness]:
        """Credentials are in the environment."""
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        with kind(tmp_path, aws_service, proxy_of(aws_service.url)).created() as harness:
            yield harness.lossy() if harness.promises.is_exactly_once else harness
