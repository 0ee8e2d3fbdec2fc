"""The data source `penstock.nats`."""

from __future__ import annotations

from ..requests.source import RequestDataSource


class NatsDataSource(RequestDataSource):
    """Messages of JetStream streams. See `PenstockDataSource`."""

    format = "penstock.nats"
    readers = "a consumer of JetStream"
    service = "penstock.datasource.nats.sink:SERVICE"
