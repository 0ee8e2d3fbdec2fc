"""Indexes for tests that are the same for OpenSearch and Elasticsearch."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from servers.opensearch import OpenSearchServer

from penstock.committers.requests.contract import RowPlace
from penstock.datasource.plug_ins import BUILT_IN, load
from penstock.datasource.requests.service import RequestService
from penstock.datasource.requests.sink import RequestSink

KINDS = ("opensearch", "elasticsearch")
PLACE = RowPlace("q1", 0, 0, 0, 0)


def service_of(kind: str) -> RequestService:
    loaded: RequestService = load(BUILT_IN[kind].replace("DESTINATION", "SERVICE"))
    return loaded


@dataclass(frozen=True)
class SearchPlace:
    """An index of its own, and how a query reaches it: through `url`."""

    server: OpenSearchServer
    kind: str
    url: str
    index: str

    @classmethod
    def new(cls, server: OpenSearchServer, kind: str, url: str, **fields: str) -> SearchPlace:
        place = cls(server, kind, url, f"rows-{uuid.uuid4()}")
        server.create(place.index, {"id": "long", **fields})
        return place

    def options(self, **more: str) -> dict[str, str]:
        return {"url": self.url, "index": self.index, **more}

    def sink(self, **more: str) -> RequestSink:
        return service_of(self.kind).sink(self.options(**more))

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

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.server.rows(self.index))
