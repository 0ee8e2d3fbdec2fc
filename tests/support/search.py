"""Indexes for tests that are the same for OpenSearch and Elasticsearch."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from servers.opensearch import OpenSearchServer
from tests.support.service_places import ServicePlace

KINDS = ("opensearch", "elasticsearch")


@dataclass(frozen=True)
class SearchPlace(ServicePlace):
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

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.server.rows(self.index))
