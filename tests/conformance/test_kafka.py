"""Kafka passes the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.kafka import KafkaServer
from tests.support.kafka_topic import DividedHarness, KafkaHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness
from penstock.testing.conformance.changes import ChangeClaims
from penstock.testing.conformance.commits import CommitClaims
from penstock.testing.conformance.deliveries import DeliveryClaims
from penstock.testing.conformance.responses import ResponseClaims


class _InATopic:
    @pytest.fixture
    def harness(self, tmp_path: Path, kafka_process: KafkaServer) -> DestinationHarness:
        harness = KafkaHarness(tmp_path, kafka_process)
        harness.create()
        return harness


@pytest.mark.slow
class TestKafkaTransactions(_InATopic, CommitClaims, ResponseClaims, DeliveryClaims, ChangeClaims):
    """The claims on which transactions and markers bear most."""


@pytest.mark.campaign
class TestKafka(_InATopic, DestinationConformance):
    """All claims."""


@pytest.mark.campaign
class TestKafkaParts(_InATopic, CommitClaims, ResponseClaims, DeliveryClaims, ChangeClaims):
    """With several transactions for each batch."""

    @pytest.fixture
    def harness(self, tmp_path: Path, kafka_process: KafkaServer) -> DestinationHarness:
        harness = DividedHarness(tmp_path, kafka_process)
        harness.create()
        return harness
