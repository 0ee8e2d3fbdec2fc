"""How rows become messages of an SQS queue. Runs on executors and in the delivery process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from ...committers.errors import SchemaMismatchError
from ...committers.requests.contract import RowPlace
from ..requests.acknowledgements import UNACKNOWLEDGED, acknowledged_by, objects_in, text_of
from ..requests.entry import Entry
from ..requests.json_requests import JsonRequests, check_rows
from ..requests.json_rows import json_objects
from ..requests.results import Failure, Result
from ..requests.row_ids import check_text_column, id_with_content, row_ids, texts_of
from .client import AwsClient
from .errors import result_of_entry
from .target import AwsTarget

_ID = re.compile(r"[!-~]{1,128}")
"""Letters, digits and punctuation."""
_NOT_XML = {"\ufffe": "\\ufffe", "\uffff": "\\uffff"}
"""Characters that SQS refuses and JSON can escape."""


@dataclass(frozen=True, slots=True)
class Message:
    body: str
    group: str | None = None
    deduplication_id: str | None = None


@dataclass(frozen=True, slots=True)
class SqsRequests(JsonRequests):
    """See `Requests`. Each row is a message with a JSON object."""

    target: AwsTarget
    group: str | None
    """The column with message groups."""

    @property
    def is_fifo(self) -> bool:
        return self.target.resource.endswith(".fifo")

    def new_client(self) -> SqsClient:
        return SqsClient(self.target, self.settings.limits)

    def check_schema(self, rows: pa.Schema) -> None:
        JsonRequests.check_schema(self, rows)
        check_text_column(rows, "messageGroupId", self.group)

    def check_destination(self, rows: pa.Schema) -> None:
        self.target.ask("get_queue_url", "QueueUrl", QueueName=self.target.resource)

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check, self.id_column, self.group)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Message]]:
        ids, groups = row_ids(rows, place, self.id_column), _groups(rows, self.group)
        is_fifo = self.is_fifo
        return [
            Entry(
                Message(_body(row), group, self._deduplication_id(row_id, group, row)),
                len(row),
                row_id,
                place.position + number,
                group if is_fifo else None,
            )
            for number, (row, row_id, group) in enumerate(zip(json_objects(rows), ids, groups, strict=True))
        ]

    def _deduplication_id(self, row_id: str, group: str | None, row: bytes) -> str | None:
        if not self.is_fifo:
            return None
        if self.id_column is None:
            row_id = id_with_content(row_id, (group or "").encode(), row)
        return row_id if _ID.fullmatch(row_id) else hashlib.sha256(row_id.encode()).hexdigest()


class SqsClient(AwsClient[Message]):
    """Sends SendMessageBatch, in which some messages can fail."""

    async def prepare(self, client: Any) -> None:
        self._queue_url = (await client.get_queue_url(QueueName=self._target.resource))["QueueUrl"]

    async def send(self, client: Any, entries: Sequence[Entry[Message]]) -> Failure | Sequence[Result]:
        response = await client.send_message_batch(
            QueueUrl=self._queue_url,
            Entries=[_request(number, entry.payload) for number, entry in enumerate(entries)],
        )
        results = {
            text_of(one, "Id"): acknowledged_by(one, "MessageId")
            for one in objects_in(response, "Successful")
        }
        for one in objects_in(response, "Failed"):
            results[text_of(one, "Id")] = _result_of_failed(one)
        return [results.get(str(number), UNACKNOWLEDGED) for number in range(len(entries))]


def _result_of_failed(message: Mapping[str, Any]) -> Result:
    code = text_of(message, "Code")
    return result_of_entry(code, text_of(message, "Message")) if code else UNACKNOWLEDGED


def _request(number: int, message: Message) -> dict[str, str]:
    request = {"Id": str(number), "MessageBody": message.body}
    if message.group is not None:
        request["MessageGroupId"] = message.group
    if message.deduplication_id is not None:
        request["MessageDeduplicationId"] = message.deduplication_id
    return request


def _body(row: bytes) -> str:
    body = row.decode()
    for character, escaped in _NOT_XML.items():
        if character in body:
            body = body.replace(character, escaped)
    return body


def _groups(rows: pa.RecordBatch, column: str | None) -> Sequence[str | None]:
    """
    Raises:
        SchemaMismatchError: a group is NULL, or not a valid name.
    """
    if column is None:
        return [None] * rows.num_rows
    groups = texts_of(rows, "messageGroupId", column)
    if any(_ID.fullmatch(group) is None for group in groups):
        raise SchemaMismatchError(
            f"A message group is not 1 to 128 letters, digits or punctuation of ASCII: messageGroupId names "
            f"the column {column!r}. Convert it in the query, for example with md5(col)."
        )
    return groups


def _check(id_column: str | None, group: str | None, rows: pa.RecordBatch) -> None:
    check_rows(id_column, rows)
    _groups(rows, group)
