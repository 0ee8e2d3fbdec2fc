"""Datasets are named as OpenLineage wants it."""

from __future__ import annotations

import pytest
from openlineage.client.naming import dataset as official

from penstock.committers.kafka.cluster import KafkaAddress
from penstock.committers.postgres.address import PostgresAddress
from penstock.telemetry.datasets import DatasetName, dataset_of

POSTGRES = PostgresAddress("db", "5432", "shop", "public", "a.b c")


@pytest.mark.parametrize(
    ("kind", "address", "named"),
    [
        ("postgres", POSTGRES.uri, official.Postgres("db", "5432", "shop", "public", "a.b c")),
        ("kafka", KafkaAddress("a:9092,b:9093", "orders").uri, official.Kafka("a", "9092", "orders")),
        ("delta", "/lake/a:b/t", official.LocalFileSystem("/lake/a:b/t")),
        ("delta", "file:///lake/t", official.LocalFileSystem("/lake/t")),
        ("delta", "s3://lake/shop/t", official.S3("lake", "shop/t")),
        ("lance", "gs://lake/t", official.GCS("lake", "t")),
        ("hudi", "abfss://lake@account.dfs.core.windows.net/t", official.ABFSS("lake", "account", "t")),
    ],
)  # fmt: skip
def test_names_are_those_of_the_official_client(
    kind: str, address: str, named: official.DatasetNaming
) -> None:
    assert dataset_of(kind, address) == DatasetName(named.get_namespace(), named.get_name())


@pytest.mark.parametrize(
    ("kind", "address", "namespace", "name"),
    [
        ("iceberg", "prod:shop.orders@audit", "iceberg://prod", "shop.orders@audit"),
        ("iceberg", "/lake/warehouse:shop.orders", "iceberg:///lake/warehouse", "shop.orders"),
        ("paimon", "wh:shop.orders", "paimon://wh", "shop.orders"),
        ("paimon", "/lake/a:b/t", "file", "/lake/a:b/t"),
        ("ducklake", "ducklake+sqlite:///lake/c.db/main/t", "ducklake:///lake/c.db", "main.t"),
        ("ducklake", "ducklake+postgresql://db:5432/shop/main/t", "ducklake://db:5432/shop", "main.t"),
        ("redis", "redis://cache:6379/0", "redis://cache:6379", "0"),
        ("http", "https://api.example.com/rows", "https://api.example.com", "rows"),
        ("other", "nats://one:4222", "nats://one:4222", "/"),
    ],
)
def test_destinations_without_a_rule_are_named_by_their_addresses(
    kind: str, address: str, namespace: str, name: str
) -> None:
    assert dataset_of(kind, address) == DatasetName(namespace, name)
