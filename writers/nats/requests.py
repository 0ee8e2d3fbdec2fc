"""How rows become messages of JetStream: `penstock.nats`. Runs on executors and in the delivery process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ...committers.requests.contract import NOWHERE, RowPlace
from ..requests.entry import Entry
from ..requests.json_requests import JsonRequests, check_rows
from ..requests.json_rows import json_objects
from ..requests.row_ids import id_with_content, row_ids, texts_of
from ..requests.template import Template
from .checking import check_streams
from .message import EXPECTED_STREAM, MESSAGE_ID, Message, check_header, check_subjects, check_token
from .target import NatsTarget

if TYPE_CHECKING:
    from .client import NatsClient

_OVERHEAD_BYTES = 64
"""Of a message, besides subject, headers and row."""


@dataclass(frozen=True, slots=True)
class NatsRequests(JsonRequests):
    """See `Requests` and `ChecksDestination`. Each row is a message with a JSON object."""

    target: NatsTarget

    def new_client(self) -> NatsClient:
        from .client import NatsClient

        return NatsClient(self.target)

    def check_schema(self, rows: pa.Schema) -> None:
        JsonRequests.check_schema(self, rows)
        for template in self.target.templates:
            template.check(rows)

    def check_destination(self, rows: pa.Schema) -> None:
        replay_s = self.settings.limits.request_timeout_s + (self.settings.retries.total_s or 0.0)
        check_streams(self.target, replay_s)

    def checker(self) -> Callable[[pa.RecordBatch], None]:
        return partial(_check, self.id_column, self.target.subject, self.target.headers)

    def entries(self, rows: pa.RecordBatch, place: RowPlace) -> Sequence[Entry[Message]]:
        target = self.target
        ids, subjects, headers = _texts(self.id_column, target.subject, target.headers, rows, place)
        expected = () if target.expected_stream is None else ((EXPECTED_STREAM, target.expected_stream),)
        names = [name for name, _ in target.headers]
        entries = []
        for number, (row, row_id, subject, *values) in enumerate(
            zip(json_objects(rows), ids, subjects, *headers, strict=True)
        ):
            if self.id_column is None:
                row_id = id_with_content(row_id, subject.encode(), row)
            of_row = ((MESSAGE_ID, row_id), *expected, *zip(names, values, strict=True))
            message = Message(subject, of_row, row)
            size_bytes = message.size_bytes + len(subject.encode()) + _OVERHEAD_BYTES
            entries.append(Entry(message, size_bytes, row_id, place.position + number))
        return entries


def _texts(
    id_column: str | None,
    subject: Template,
    headers: Sequence[tuple[str, Template]],
    rows: pa.RecordBatch,
    place: RowPlace,
) -> tuple[Sequence[str], Sequence[str], list[Sequence[str]]]:
    """Return ids, subjects, and the values of each header.

    Raises:
        SchemaMismatchError: one of them cannot be sent as it is.
    """
    ids = row_ids(rows, place, id_column)
    if id_column is not None:
        check_header("idColumn", ids)
    for column in subject.columns:
        check_token(subject.option, column, texts_of(rows, subject.option, column))
    values = [template.texts(rows) for _, template in headers]
    for texts in values:
        check_header("headers", texts)
    subjects = subject.texts(rows)
    check_subjects(subject.option, subjects)
    return ids, subjects, values


def _check(
    id_column: str | None, subject: Template, headers: Sequence[tuple[str, Template]], rows: pa.RecordBatch
) -> None:
    check_rows(id_column, rows)
    _texts(id_column, subject, headers, rows, NOWHERE)
