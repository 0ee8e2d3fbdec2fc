"""How rows become records of a Firehose stream. Runs on executors and in the delivery process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from ...committers.requests.contract import RowPlace
from ..requests.acknowledgements import results_of_items
from ..requests.entry import Entry
from ..requests.json_requests import JsonRequests
from ..requests.results import Failure, Result
from .client import AwsClient
from .errors import result_of_record
from .target import AwsTarget


@dataclass(frozen=True, slots=True)
class FirehoseRequests(JsonRequests):
    """See `Requests`. Each row is a line with a JSON object: Firehose puts nothing between records."""

    target: AwsTarget

    def new_client(self) -> FirehoseClient:
        return FirehoseClient(self.target, self.settings.limits)

    def check_destination(self, rows: pa.Schema) -> None:
        self.target.ask(
            "describe_delivery_stream",
            "DeliveryStreamDescription",
            DeliveryStreamName=self.target.resource,
        )

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[bytes]]:
        entries = JsonRequests.entries(self, rows, place)
        return [replace(entry, payload=entry.payload + b"\n") for entry in entries]


class FirehoseClient(AwsClient[bytes]):
    """Sends PutRecordBatch, in which some records can fail."""

    async def send(self, client: Any, entries: Sequence[Entry[bytes]]) -> Failure | Sequence[Result]:
        response = await client.put_record_batch(
            DeliveryStreamName=self._target.resource, Records=[{"Data": one.payload} for one in entries]
        )
        return results_of_items(
            response, "RequestResponses", lambda record: result_of_record(record, "RecordId")
        )
