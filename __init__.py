"""Penstock: exactly-once streaming into lake tables from Spark 4, in Python.

    import penstock

    penstock.register(spark)
    df.writeStream.format("penstock.delta").option("path", "/lake/flights")...

Names are imported on first use: importing the package loads neither Spark nor a table library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .committers.errors import (
        AccessRefusedError,
        CheckpointGoneError,
        CheckpointMismatchError,
        CommitStateUnknownError,
        ConfigurationError,
        FencedError,
        ManifestCorruptError,
        PenstockError,
        RetryableError,
        SchemaMismatchError,
        StoreFailedError,
        StoreMissingError,
        StoreUnreachableError,
        TableChangedError,
        TableNotSupportedError,
    )
    from .datasource.aws.sources import (
        DynamoDbDataSource,
        FirehoseDataSource,
        KinesisDataSource,
        SqsDataSource,
    )
    from .datasource.clickhouse.source import ClickHouseDataSource
    from .datasource.delta.source import DeltaDataSource
    from .datasource.duckdb.source import DuckDbDataSource
    from .datasource.ducklake.source import DuckLakeDataSource
    from .datasource.fanout.source import FanoutDataSource
    from .datasource.files.source import FilesDataSource
    from .datasource.http.source import HttpDataSource
    from .datasource.hudi.source import HudiDataSource
    from .datasource.iceberg.source import IcebergDataSource
    from .datasource.kafka.source import KafkaDataSource
    from .datasource.lake.source import LakeDataSource
    from .datasource.lance.source import LanceDataSource
    from .datasource.mysql.source import MySqlDataSource
    from .datasource.nats.source import NatsDataSource
    from .datasource.paimon.source import PaimonDataSource
    from .datasource.postgres.source import PostgresDataSource
    from .datasource.redis.source import RedisDataSource
    from .datasource.search.sources import ElasticsearchDataSource, OpenSearchDataSource
    from .datasource.spark.distribute import distribute
    from .datasource.spark.error_of import error_of
    from .datasource.spark.explanation import Explanation, explain
    from .datasource.spark.foreach_batch import foreach_batch
    from .datasource.spark.registration import register
    from .datasource.spark.start_settings import START_SETTINGS
    from .datasource.sql.source import SqlDataSource
    from .delivery.handle import DeliveryHandle, start_delivery
    from .operating.checking.checks import check
    from .operating.findings import Finding, Severity
    from .operating.operations import History, history, recover, retry, status
    from .operating.plotting import plot
    from .operating.records import BatchRecord, DeliveredRecord, Records, StreamRecord, StreamState
    from .operating.watching import watch

__version__ = "0.1.0"

__all__ = [
    "START_SETTINGS",
    "AccessRefusedError",
    "BatchRecord",
    "CheckpointGoneError",
    "CheckpointMismatchError",
    "ClickHouseDataSource",
    "CommitStateUnknownError",
    "ConfigurationError",
    "DeliveredRecord",
    "DeliveryHandle",
    "DeltaDataSource",
    "DuckDbDataSource",
    "DuckLakeDataSource",
    "DynamoDbDataSource",
    "ElasticsearchDataSource",
    "Explanation",
    "FanoutDataSource",
    "FencedError",
    "FilesDataSource",
    "Finding",
    "FirehoseDataSource",
    "History",
    "HttpDataSource",
    "HudiDataSource",
    "IcebergDataSource",
    "KafkaDataSource",
    "KinesisDataSource",
    "LakeDataSource",
    "LanceDataSource",
    "ManifestCorruptError",
    "MySqlDataSource",
    "NatsDataSource",
    "OpenSearchDataSource",
    "PaimonDataSource",
    "PenstockError",
    "PostgresDataSource",
    "Records",
    "RedisDataSource",
    "RetryableError",
    "SchemaMismatchError",
    "Severity",
    "SqlDataSource",
    "SqsDataSource",
    "StoreFailedError",
    "StoreMissingError",
    "StoreUnreachableError",
    "StreamRecord",
    "StreamState",
    "TableChangedError",
    "TableNotSupportedError",
    "check",
    "distribute",
    "error_of",
    "explain",
    "foreach_batch",
    "history",
    "plot",
    "recover",
    "register",
    "retry",
    "start_delivery",
    "status",
    "watch",
]

_HOME = {
    "DeliveryHandle": "delivery.handle",
    "ClickHouseDataSource": "datasource.clickhouse.source",
    "DeltaDataSource": "datasource.delta.source",
    "DuckDbDataSource": "datasource.duckdb.source",
    "DuckLakeDataSource": "datasource.ducklake.source",
    "DynamoDbDataSource": "datasource.aws.sources",
    "ElasticsearchDataSource": "datasource.search.sources",
    "FanoutDataSource": "datasource.fanout.source",
    "FilesDataSource": "datasource.files.source",
    "FirehoseDataSource": "datasource.aws.sources",
    "HttpDataSource": "datasource.http.source",
    "HudiDataSource": "datasource.hudi.source",
    "IcebergDataSource": "datasource.iceberg.source",
    "KinesisDataSource": "datasource.aws.sources",
    "KafkaDataSource": "datasource.kafka.source",
    "LakeDataSource": "datasource.lake.source",
    "LanceDataSource": "datasource.lance.source",
    "MySqlDataSource": "datasource.mysql.source",
    "NatsDataSource": "datasource.nats.source",
    "OpenSearchDataSource": "datasource.search.sources",
    "PaimonDataSource": "datasource.paimon.source",
    "PostgresDataSource": "datasource.postgres.source",
    "RedisDataSource": "datasource.redis.source",
    "START_SETTINGS": "datasource.spark.start_settings",
    "SqlDataSource": "datasource.sql.source",
    "SqsDataSource": "datasource.aws.sources",
    "distribute": "datasource.spark.distribute",
    "error_of": "datasource.spark.error_of",
    "foreach_batch": "datasource.spark.foreach_batch",
    "register": "datasource.spark.registration",
    "start_delivery": "delivery.handle",
    "BatchRecord": "operating.records",
    "DeliveredRecord": "operating.records",
    "Records": "operating.records",
    "StreamRecord": "operating.records",
    "StreamState": "operating.records",
    "History": "operating.operations",
    "history": "operating.operations",
    "recover": "operating.operations",
    "retry": "operating.operations",
    "status": "operating.operations",
    "Explanation": "datasource.spark.explanation",
    "explain": "datasource.spark.explanation",
    "Finding": "operating.findings",
    "Severity": "operating.findings",
    "check": "operating.checking.checks",
    "plot": "operating.plotting",
    "watch": "operating.watching",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME.get(name, 'committers.errors')}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
