"""Kafka passes the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers.kafka import KafkaServer
from tests.support.kafka_topic import KafkaHarness

from penstock.testing.conformance import DestinationConformance, DestinationHarness


@pytest.mark.slow
class TestKafka(DestinationConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path, kafka_process: KafkaServer) -> DestinationHarness:
        harness = KafkaHarness(tmp_path, kafka_process)
        harness.create()
        return harness
