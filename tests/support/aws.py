"""Queries of each destination on AWS, for tests that are the same for all."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from servers.aws import KEY, REGION, SECRET, AwsServer
from tests.support.service_places import ServicePlace

NAMED_BY = {"kinesis": "stream", "firehose": "stream", "dynamodb": "table", "sqs": "queue"}
"""The services, and the option with the name of the stream, table or queue."""
MORE = {"dynamodb": {"keyColumns": "id"}}


def given(kind: str) -> dict[str, str]:
    """Valid options of a service without credentials."""
    return {NAMED_BY[kind]: "flights", "region": REGION, **MORE.get(kind, {})}


@dataclass(frozen=True)
class AwsPlace(ServicePlace):
    """A stream, table or queue, and how a query reaches it: through `url`."""

    server: AwsServer
    kind: str
    name: str
    url: str

    @classmethod
    def new(cls, server: AwsServer, kind: str, url: str | None = None, suffix: str = "") -> AwsPlace:
        name = f"rows-{uuid.uuid4()}{suffix}"
        server.create(kind, name)
        return cls(server, kind, name, url or server.url)

    def options(self, **more: str) -> dict[str, str]:
        place = {NAMED_BY[self.kind]: self.name, "endpointUrl": self.url}
        return {**given(self.kind), **place, "accessKeyId": KEY, "secretAccessKey": SECRET, **more}

    def rows(self) -> list[dict[str, Any]]:
        return self.server.rows(self.kind, self.name)

    def ids(self) -> list[int]:
        return sorted(int(row["id"]) for row in self.rows())
