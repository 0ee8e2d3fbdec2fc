"""Sinks into Kafka for comparison. The topic has the name of the stream's folder."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from benchmarks.spark.sinks import Penstock, Sink
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

KAFKA_SETTING = "spark.penstock.benchmark.kafka"
"""Session setting with the addresses of the brokers."""
COMPRESSION_SETTING = "spark.penstock.benchmark.compression"
"""Session setting: the codec of the records."""


def server(rows: DataFrame) -> str:
    found = rows.sparkSession.conf.get(KAFKA_SETTING)
    assert found is not None
    return found


def compression(rows: DataFrame) -> str:
    return rows.sparkSession.conf.get(COMPRESSION_SETTING) or "none"


class SparkKafka(Sink):
    """Spark's own Kafka sink: at least once. `linger.ms` as librdkafka has it, since 0 is slower."""

    keeps_rows = False

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        options = {
            "kafka.bootstrap.servers": server(rows),
            "kafka.linger.ms": "5",
            "kafka.compression.type": compression(rows),
            "topic": folder.name,
        }
        return rows.writeStream.format("kafka").options(**options)


class PenstockKafka(Penstock):
    """Each batch is committed by the driver."""

    keeps_rows = False
    options: ClassVar[dict[str, str]] = {}

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        options = {
            "bootstrapServers": server(rows),
            "topic": folder.name,
            "kafka.compression.type": compression(rows),
            "store": f"sqlite:///{folder}/store.sqlite",
            "rowLog": str(folder / "rows"),
            **self.options,
        }
        return rows.writeStream.format("penstock.kafka").options(**options)


class DecoupledKafka(PenstockKafka):
    """A batch is done when its rows are in the row log."""

    options: ClassVar = {"delivery": "decoupled", "deliverAfterSeconds": "1"}


class ParallelKafka(PenstockKafka):
    """Two transactions at a time."""

    options: ClassVar = {"delivery": "decoupled", "parallelTransactions": "2"}


class RowLogOnly(Penstock):
    """The row log of a service to which nothing is delivered."""

    keeps_rows = False

    def writer(self, rows: DataFrame, folder: Path) -> DataStreamWriter:
        options = {
            "url": "http://127.0.0.1:9",
            "delivery": "decoupled",
            "store": f"sqlite:///{folder}/store.sqlite",
            "rowLog": str(folder / "rows"),
        }
        return rows.writeStream.format("penstock.http").options(**options)


KAFKA_SINKS: dict[str, type[Sink]] = {
    "kafka": SparkKafka,
    "penstock.kafka": PenstockKafka,
    "penstock.kafka, decoupled": DecoupledKafka,
    "penstock.kafka, two transactions": ParallelKafka,
    "row log": RowLogOnly,
}
