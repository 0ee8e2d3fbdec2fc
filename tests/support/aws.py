"""Queries of each destination on AWS, for tests that are the same for all."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from servers.aws import KEY, REGION, SECRET, AwsServer

from penstock.committers.requests.contract import RowPlace
from penstock.datasource.base_source import PenstockDataSource
from penstock.datasource.destinations import DestinationType
from penstock.datasource.plug_ins import BUILT_IN, load
from penstock.datasource.requests.service import RequestService
from penstock.datasource.requests.sink import RequestSink

NAMED_BY = {"kinesis": "stream", "firehose": "stream", "dynamodb": "table", "sqs": "queue"}
"""The services, and the option with the name of the stream, table or queue."""
MORE = {"dynamodb": {"keyColumns": "id"}}
PLACE = RowPlace("q1", 0, 0, 0, 0)


@dataclass(frozen=True)
class AwsKind:
    """One service."""

    kind: str

    @property
    def destination(self) -> DestinationType:
        loaded: DestinationType = load(BUILT_IN[self.kind])
        return loaded

    @property
    def service(self) -> RequestService:
        loaded: RequestService = load(BUILT_IN[self.kind].replace("DESTINATION", "SERVICE"))
        return loaded

    @property
    def data_source(self) -> type[PenstockDataSource]:
        loaded: type[PenstockDataSource] = load(self.destination.data_source)
        return loaded

    def given(self, **options: str) -> dict[str, str]:
        """Valid options without credentials."""
        return {
            NAMED_BY[self.kind]: "flights",
            "region": REGION,
            **MORE.get(self.kind, {}),
            **options,
        }


@dataclass(frozen=True)
class AwsPlace:
    """A stream, table or queue, and how a query reaches it: through `url`."""

    server: AwsServer
    kind: AwsKind
    name: str
    url: str

    @classmethod
    def new(cls, server: AwsServer, kind: str, url: str | None = None, suffix: str = "") -> AwsPlace:
        name = f"rows-{uuid.uuid4()}{suffix}"
        server.create(kind, name)
        return cls(server, AwsKind(kind), name, url or server.url)

    def options(self, **more: str) -> dict[str, str]:
        place = {NAMED_BY[self.kind.kind]: self.name, "endpointUrl": self.url}
        return {**self.kind.given(), **place, "accessKeyId": KEY, "secretAccessKey": SECRET, **more}

    def sink(self, **more: str) -> RequestSink:
        return self.kind.service.sink(self.options(**more))

    def write(self, rows: pa.RecordBatch, **more: str) -> Any:
        """Send the rows as a task, and return the counters of its writer."""
        requests = self.sink(**more).requests
        writer: Any = requests.open_writer()
        try:
            writer.write(requests.entries(rows, PLACE))
            writer.flush()
        finally:
            writer.abort()
        return writer.counters

    def rows(self) -> list[dict[str, Any]]:
        return self.server.rows(self.kind.kind, self.name)

    def ids(self) -> list[int]:
        return sorted(int(row["id"]) for row in self.rows())
