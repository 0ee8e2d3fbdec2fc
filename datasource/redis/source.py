"""The data source `penstock.redis`."""

from __future__ import annotations

from ..requests.source import RequestDataSource


class RedisDataSource(RequestDataSource):
    """Keys of a Redis server. See `PenstockDataSource`."""

    format = "penstock.redis"
    readers = "a client of Redis"
    service = "penstock.datasource.redis.sink:SERVICE"
