"""The data source `penstock.kafka`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import KafkaSink


class KafkaDataSource(PenstockDataSource):
    """Records of Kafka topics. See `PenstockDataSource`."""

    format = "penstock.kafka"
    readers = "a Kafka consumer, or from Spark with the format kafka"

    def sink(self) -> KafkaSink:
        from .stored import require_client

        require_client()
        from .options import KafkaOptions
        from .sink import KafkaSink

        return KafkaSink(KafkaOptions.parse(self.options))
