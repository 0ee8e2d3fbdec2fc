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
        CheckpointGoneError,
        CheckpointMismatchError,
        CommitStateUnknownError,
        ConfigurationError,
        FencedError,
        ManifestCorruptError,
        PenstockError,
        RetryableError,
        SchemaMismatchError,
        TableChangedError,
        TableNotSupportedError,
    )
    from .datasource.aws.sources import (
        DynamoDbDataSource,
        FirehoseDataSource,
        KinesisDataSource,
        SqsDataSource,
    )
    from .datasource.delta.source import DeltaDataSource
    from .datasource.distribute import distribute
    from .datasource.http.source import HttpDataSource
    from .datasource.iceberg.source import IcebergDataSource
    from .datasource.lance.source import LanceDataSource
    from .datasource.nats.source import NatsDataSource
    from .datasource.postgres.source import PostgresDataSource
    from .datasource.redis.source import RedisDataSource
    from .datasource.registration import register
    from .datasource.search.sources import ElasticsearchDataSource, OpenSearchDataSource
    from .datasource.start_settings import START_SETTINGS
    from .delivery.handle import DeliveryHandle, start_delivery

__version__ = "0.1.0"

__all__ = [
    "START_SETTINGS",
    "CheckpointGoneError",
    "CheckpointMismatchError",
    "CommitStateUnknownError",
    "ConfigurationError",
    "DeliveryHandle",
    "DeltaDataSource",
    "DynamoDbDataSource",
    "ElasticsearchDataSource",
    "FencedError",
    "FirehoseDataSource",
    "HttpDataSource",
    "IcebergDataSource",
    "KinesisDataSource",
    "LanceDataSource",
    "ManifestCorruptError",
    "NatsDataSource",
    "OpenSearchDataSource",
    "PenstockError",
    "PostgresDataSource",
    "RedisDataSource",
    "RetryableError",
    "SchemaMismatchError",
    "SqsDataSource",
    "TableChangedError",
    "TableNotSupportedError",
    "distribute",
    "register",
    "start_delivery",
]

_HOME = {
    "START_SETTINGS": "datasource.start_settings",
    "DeliveryHandle": "delivery.handle",
    "DeltaDataSource": "datasource.delta.source",
    "DynamoDbDataSource": "datasource.aws.sources",
    "ElasticsearchDataSource": "datasource.search.sources",
    "FirehoseDataSource": "datasource.aws.sources",
    "HttpDataSource": "datasource.http.source",
    "IcebergDataSource": "datasource.iceberg.source",
    "KinesisDataSource": "datasource.aws.sources",
    "LanceDataSource": "datasource.lance.source",
    "OpenSearchDataSource": "datasource.search.sources",
    "PostgresDataSource": "datasource.postgres.source",
    "SqsDataSource": "datasource.aws.sources",
    "NatsDataSource": "datasource.nats.source",
    "RedisDataSource": "datasource.redis.source",
    "distribute": "datasource.distribute",
    "register": "datasource.registration",
    "start_delivery": "delivery.handle",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    return getattr(import_module(f".{_HOME.get(name, 'committers.errors')}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
