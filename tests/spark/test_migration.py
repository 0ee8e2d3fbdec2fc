"""docs/migrate.md: queries of other sinks go on with Penstock's, and back, at their position."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import polars as pl
import pytest
from confluent_kafka import Consumer, TopicPartition
from servers.jvm import run_java
from servers.kafka import FIXTURE, KafkaServer
from servers.maven import classpath_with
from servers.spark_cluster import spark_kafka_jars
from tests.support.cli import penstock
from tests.support.id_stream import write_ids
from tests.support.jvm_tables import JvmTables, catalog_settings, jvm_tables
from tests.support.unreachable import skipped_if_unreachable

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.campaign]


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("iceberg")


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory, warehouse: Path) -> Iterator[JvmTables]:
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        **catalog_settings(warehouse),
    }
    with (
        skipped_if_unreachable(),
        jvm_tables(tmp_path_factory.mktemp("jvm"), settings, spark_kafka_jars()) as tables,
    ):
        yield tables


class Migration:
    """A query that changes its sink. Each run gets 100 rows more."""

    def __init__(self, jvm: JvmTables, folder: Path) -> None:
        self._jvm, self._source, self.rows = jvm, folder / "source", 0
        self.checkpoint = folder / "checkpoint"
        self._source.mkdir()

    def run(self, sink: str, options: Mapping[str, str], table: str = "") -> None:
        path = self._source / f"{self.rows:05}.parquet"
        if not path.exists():
            write_ids(path, range(self.rows, self.rows + 100), self.rows)
        rows = f"spark.readStream.schema('id LONG').parquet({str(self._source)!r})"
        self._jvm.stream(rows, sink, {**options, "checkpointLocation": str(self.checkpoint)}, table)
        self.rows += 100


def goes_on(
    migration: Migration, old: Callable[[], None], ours: Callable[..., None], ids: Callable[[], list[int]]
) -> None:
    """Switch, also to decoupled delivery, and back."""
    old()
    old()
    with pytest.raises(AssertionError, match="newTarget"):
        ours()
    ours(newTarget="allow")
    ours(delivery="decoupled")
    assert ids() == list(range(migration.rows - 100)), "its first batch is the next one"
    penstock(f"sqlite:///{migration.checkpoint}/penstock.sqlite", "deliver", "--once")
    assert ids() == list(range(migration.rows))
    old()
    assert ids() == list(range(migration.rows)), "and back"


def test_from_delta_spark(jvm: JvmTables, tmp_path: Path) -> None:
    migration, path = Migration(jvm, tmp_path), f"{tmp_path}/table"
    goes_on(
        migration,
        lambda: migration.run("delta", {"path": path}),
        lambda **more: migration.run("penstock.delta", {"path": path, **more}),
        lambda: sorted(pl.read_delta(path)["id"]),
    )
    assert jvm.sql(f"SELECT count(*), max(id) FROM delta.`{path}`") == [(migration.rows, migration.rows - 1)]


def test_from_iceberg_s_sink(jvm: JvmTables, tmp_path: Path, warehouse: Path) -> None:
    migration, ours = Migration(jvm, tmp_path), {"warehouse": str(warehouse), "table": "shop.ids"}
    jvm.sql("CREATE NAMESPACE penstock.shop")
    jvm.sql("CREATE TABLE penstock.shop.ids (id BIGINT) USING iceberg")
    goes_on(
        migration,
        lambda: migration.run("iceberg", {}, "penstock.shop.ids"),
        lambda **more: migration.run("penstock.iceberg", {**ours, **more}),
        lambda: [row[0] for row in jvm.sql("SELECT id FROM penstock.shop.ids ORDER BY id")],
    )


def test_from_the_offsets_of_a_consumer_group(
    jvm: JvmTables, kafka_process: KafkaServer, tmp_path: Path
) -> None:
    """Flink and Kafka Connect commit them when they stop. Kafka's own command prints them."""
    topic, group, path = f"rows-{uuid.uuid4().hex}", f"connect-{uuid.uuid4().hex}", f"{tmp_path}/table"
    kafka_process.create(topic)
    for partition in range(2):
        values = (b"%d" % (100 * partition + number) for number in range(100))
        kafka_process.produce(topic, *values, partition=partition)
    consumer = Consumer({"bootstrap.servers": kafka_process.servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 30), TopicPartition(topic, 1, 20)], asynchronous=False)
    consumer.close()

    described = run_java(
        classpath_with(FIXTURE / "pom.xml", ["org.apache.kafka:kafka-tools:4.3.1:jar"]),
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", kafka_process.servers, "--describe", "--group", group),
    )
    lines = [line.split() for line in described.splitlines() if line]
    offset = lines[0].index("CURRENT-OFFSET")
    offsets = json.dumps({topic: {line[offset - 1]: int(line[offset]) for line in lines[1:]}})
    rows = (
        f"spark.readStream.format('kafka').option('kafka.bootstrap.servers', {kafka_process.servers!r})"
        f".option('subscribe', {topic!r}).option('startingOffsets', {offsets!r}).load()"
        ".selectExpr('CAST(CAST(value AS STRING) AS LONG) AS id', 'partition', 'offset')"
    )
    jvm.stream(rows, "penstock.delta", {"path": path, "checkpointLocation": f"{tmp_path}/checkpoint"})
    assert sorted(pl.read_delta(path)["id"]) == [*range(30, 100), *range(120, 200)]
