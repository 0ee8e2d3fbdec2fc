"""How rows become records of a Kinesis data stream. Runs on executors and in the delivery process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from ...committers.errors import SchemaMismatchError
from ...committers.requests.contract import NOWHERE, RowPlace
from ..requests.acknowledgements import results_of_items
from ..requests.entry import Entry
from ..requests.json_requests import JsonRequests, check_rows
from ..requests.json_rows import json_objects
from ..requests.results import Failure, Result
from ..requests.row_ids import check_text_column, row_ids, texts_of
from .client import AwsClient
from .errors import result_of_record
from .target import AwsTarget

PARTITION_KEY_MAX = 256
"""Characters."""


@dataclass(frozen=True, slots=True)
class Record:
    data: bytes
    partition_key: str


@dataclass(frozen=True, slots=True)
class KinesisRequests(JsonRequests):
    """See `Requests`. Each row is a record with a JSON object."""

    target: AwsTarget
    partition_key: str | None
    """The column with partition keys. None: the ids of the rows, which spread them over all shards."""

    def new_client(self) -> KinesisClient:
        return KinesisClient(self.target, self.settings.limits)

    def check_schema(self, rows: pa.Schema) -> None:
        JsonRequests.check_schema(self, rows)
        check_text_column(rows, "partitionKey", self.partition_key)

    def check_destination(self, rows: pa.Schema) -> None:
        self.target.ask(
            "describe_stream_summary", "StreamDescriptionSummary", StreamName=self.target.resource
        )

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check, self.id_column, self.partition_key)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Record]]:
        ids, keys = (
            row_ids(rows, place, self.id_column),
            _keys(rows, place, self.id_column, self.partition_key),
        )
        return [
            Entry(Record(row, key), len(row) + len(key.encode()), row_id, place.position + number, key)
            for number, (row, row_id, key) in enumerate(zip(json_objects(rows), ids, keys, strict=True))
        ]


class KinesisClient(AwsClient[Record]):
    """Sends PutRecords, in which some records can fail."""

    async def send(self, client: Any, entries: Sequence[Entry[Record]]) -> Failure | Sequence[Result]:
        response = await client.put_records(
            StreamName=self._target.resource,
            Records=[
                {"Data": one.payload.data, "PartitionKey": one.payload.partition_key} for one in entries
            ],
        )
        return results_of_items(
            response, "Records", lambda record: result_of_record(record, "SequenceNumber")
        )


def _keys(
    rows: pa.RecordBatch, place: RowPlace, id_column: str | None, partition_key: str | None
) -> Sequence[str]:
    """
    Raises:
        SchemaMismatchError: a key is NULL, empty or too long.
    """
    if partition_key is None:
        ids = row_ids(rows, place, id_column)
        return [one if 0 < len(one) <= PARTITION_KEY_MAX else _digest(one) for one in ids]
    keys = texts_of(rows, "partitionKey", partition_key)
    if wrong := next((key for key in keys if not 0 < len(key) <= PARTITION_KEY_MAX), None):
        raise SchemaMismatchError(
            f"A partition key has {len(wrong):,} characters, and Kinesis accepts {PARTITION_KEY_MAX}: "
            f"partitionKey names the column {partition_key!r}. Use a shorter one, for example md5(col)."
        )
    if "" in keys:
        raise SchemaMismatchError(
            f"A partition key is empty: partitionKey names the column {partition_key!r}. Filter these rows, "
            "or give them a key."
        )
    return keys


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _check(id_column: str | None, partition_key: str | None, rows: pa.RecordBatch) -> None:
    check_rows(id_column, rows)
    _keys(rows, NOWHERE, id_column, partition_key)
