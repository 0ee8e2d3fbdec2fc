"""How rows become items of a DynamoDB table. Runs on executors and in the delivery process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from ...committers.contract import Changes
from ...committers.errors import ConfigurationError, SchemaMismatchError
from ...committers.requests.contract import NOWHERE, RowPlace
from ..requests.acknowledgements import UNACKNOWLEDGED, objects_in, result_of_each
from ..requests.entry import Entry
from ..requests.json_rows import check_json_schema
from ..requests.limits import Limits
from ..requests.results import DELIVERED, Failure, Result, Retry
from ..requests.row_ids import check_id_column, row_ids
from ..requests.row_requests import RowRequests
from .client import AwsClient
from .dynamodb_changes import (
    Change,
    Item,
    ItemDeletion,
    ItemUpdate,
    item_of,
    result_of_update,
    write_request,
)
from .dynamodb_items import items_of, key_of, key_type, size_of
from .errors import reading_an_answer
from .target import AwsTarget


@dataclass(frozen=True, slots=True)
class DynamoDbRequests(RowRequests):
    """See `Requests`. Each row is an item, which replaces the one with its key.

    BatchWriteItem refuses a request with two items of one key, and says nothing about the order of requests.
    So an entry waits for those with its key before it (`order_by_key`).
    """

    target: AwsTarget
    keys: tuple[str, ...]
    """Columns of the partition key and, if the table has one, the sort key."""

    def check_schema(self, rows: pa.Schema) -> None:
        check_json_schema(rows, self.address)
        check_id_column(rows, self.id_column)
        for key in self.keys:
            if key not in rows.names:
                raise SchemaMismatchError(
                    f"keyColumns names the column {key!r}, which the query does not have: "
                    f"{', '.join(rows.names)}."
                )
            if key_type(rows.field(key).type) is None:
                raise SchemaMismatchError(
                    f"keyColumns names the column {key!r} of type {rows.field(key).type}, which cannot be a "
                    "key in DynamoDB: cast it to STRING."
                )

    def check_destination(self, rows: pa.Schema) -> None:
        table = self.target.ask("describe_table", "Table", TableName=self.target.resource)
        types = {one["AttributeName"]: one["AttributeType"] for one in table["AttributeDefinitions"]}
        named = [one["AttributeName"] for one in sorted(table["KeySchema"], key=lambda one: one["KeyType"])]
        if sorted(named) != sorted(self.keys):
            raise ConfigurationError(
                f"The key of the table {self.target.resource} is {', '.join(named)}, but keyColumns names "
                f'{", ".join(self.keys)}. Set .option("keyColumns", "{", ".join(named)}"), and name the '
                "columns of the query like this."
            )
        for key in self.keys:
            if key in rows.names and key_type(rows.field(key).type) != types[key]:
                raise SchemaMismatchError(
                    f"The key {key} of the table {self.target.resource} has the type {types[key]}, but the "
                    f"column {key} is {rows.field(key).type}. Cast it in the query: S is STRING, N a number, "
                    "and B BINARY."
                )

    # Changes by key ------------------------------------------------------------------------------------

    def check_changes(self, changes: Changes, rows: pa.Schema) -> None:
        """All changes are taken."""

    def why_whole(self, rows: pa.Schema) -> str:
        return ""

    def deletion_checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check_keys, self.keys)

    def upserts(
        self, rows: pa.RecordBatch, place: RowPlace, kept: Sequence[Collection[str]]
    ) -> Sequence[Entry[Change]]:
        """Rows that keep values are updates of an item, others replace it."""
        entries: list[Entry[Change]] = []
        for entry, some in zip(self.entries(rows, place), kept, strict=True):
            item: Change = entry.payload
            if some:
                item = ItemUpdate.of(entry.payload, self.keys, rows.schema.names, some)
            entries.append(Entry(item, entry.size_bytes, entry.id, entry.position, entry.key))
        return entries

    def deletions(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Change]]:
        keys = items_of(rows.select(list(self.keys)), self.keys)
        return [
            Entry(ItemDeletion(key), size_of(key), row_id, place.position, key_of(key, self.keys))
            for key, row_id in zip(keys, place.ids(rows.num_rows), strict=True)
        ]

    # Rows ----------------------------------------------------------------------------------------------

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check, self.id_column, self.keys)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Item]]:
        ids, items = row_ids(rows, place, self.id_column), items_of(rows, self.keys)
        return [
            Entry(item, size_of(item), row_id, place.position + number, key_of(item, self.keys))
            for number, (item, row_id) in enumerate(zip(items, ids, strict=True))
        ]

    def new_client(self) -> DynamoDbClient:
        return DynamoDbClient(self.target, self.settings.limits, self.keys)


class DynamoDbClient(AwsClient[Change]):
    """Sends BatchWriteItem, which can leave some items unprocessed, and UpdateItem for partial rows."""

    def __init__(self, target: AwsTarget, limits: Limits, keys: Sequence[str]) -> None:
        super().__init__(target, limits)
        self._keys = keys

    async def send(self, client: Any, entries: Sequence[Entry[Change]]) -> Failure | Sequence[Result]:
        """No two entries have the same key."""
        updates = [one for one in entries if isinstance(one.payload, ItemUpdate)]
        if not updates:
            return await self._write(client, entries)
        others = [one for one in entries if not isinstance(one.payload, ItemUpdate)]
        sending: list[Coroutine[Any, Any, Failure | Sequence[Result]]] = [
            self._update(client, one.payload) for one in updates if isinstance(one.payload, ItemUpdate)
        ]
        if others:
            sending.append(self._write(client, others))
        answers = await asyncio.gather(*map(self._result, sending))
        results = dict(zip([one.position for one in updates], answers, strict=False))
        if others:
            results |= zip(
                [one.position for one in others], result_of_each(answers[-1], len(others)), strict=True
            )
        return [results[one.position] for one in entries]

    async def _result(self, answer: Awaitable[Any]) -> Any:
        """Return the result of one of several requests. One that fails does not concern the others."""
        try:
            with reading_an_answer():
                return await answer
        except Exception as error:  # noqa: BLE001  of any type
            return self.classify(error)

    async def _update(self, client: Any, update: ItemUpdate) -> Any:
        return result_of_update(await client.update_item(TableName=self._target.resource, **update.arguments))

    async def _write(self, client: Any, entries: Sequence[Entry[Any]]) -> Failure | Sequence[Result]:
        requests = [write_request(one.payload) for one in entries]
        response = await client.batch_write_item(RequestItems={self._target.resource: requests})
        left = response.get("UnprocessedItems") if isinstance(response, dict) else None
        if not isinstance(left, dict):
            return UNACKNOWLEDGED  # it is empty if all items are written
        again = Retry("UnprocessedItems", "The table is throttled.", is_throttled=True)
        keys = [self._key_of(request) for table in left for request in objects_in(left, table)]
        if not set(keys) <= {one.key for one in entries} or len(keys) < len(left):
            return again  # items are the same however often they are written
        return [again if one.key in keys else DELIVERED for one in entries]

    def _key_of(self, request: Mapping[str, Any]) -> Hashable:
        """Return the key of a request that is left; None if it is none of ours."""
        try:
            return key_of(item_of(request), self._keys)
        except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError):
            return None


def _check_keys(keys: Sequence[str], rows: pa.RecordBatch) -> None:
    items_of(rows.select(list(keys)), keys)


def _check(id_column: str | None, keys: Sequence[str], rows: pa.RecordBatch) -> None:
    items_of(rows, keys)
    row_ids(rows, NOWHERE, id_column)
