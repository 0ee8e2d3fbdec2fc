"""Rows that keep some values of their key, sent to servers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from servers.aws import AwsServer
from servers.http_rows import HttpRows
from servers.opensearch import OpenSearchServer
from servers.redis import RedisServer
from tests.support.aws import AwsPlace
from tests.support.search import SearchPlace
from tests.support.service_places import send_rows, service_of

CHANGES = {
    "writeMode": "upsert",
    "keys": "id",
    "deleteWhen": "op = 'd'",
    "dropColumns": "op",
    "retryFor": "5s",
}
FIRST = [(1, "a", 1, "u"), (2, "b", 2, "u"), (3, "c", 3, "u"), (5, "e", 5, "u")]
SECOND = [(1, None, 10, "u"), (2, "B", None, "u"), (3, None, None, "d"), (4, None, 4, "u"), (5, "E", 50, "u")]
EXPECTED: list[dict[str, Any]] = [
    {"id": 1, "text": "a", "n": 10},
    {"id": 2, "text": "B", "n": 2},
    {"id": 4, "n": 4},
    {"id": 5, "text": "E", "n": 50},
]


def rows_of(*rows: tuple[Any, ...]) -> pa.RecordBatch:
    types = (pa.int64(), pa.string(), pa.int64(), pa.string())
    arrays = [pa.array(values, of) for values, of in zip(zip(*rows, strict=True), types, strict=True)]
    return pa.record_batch(arrays, ["id", "text", "n", "op"])


def send(kind: str, options: dict[str, str]) -> None:
    """Send whole rows, then some whose NULL keeps the value, twice as after a crash, and some without a
    column.
    """
    service = service_of(kind)
    parsed = service.options.parse({**options, **CHANGES})
    requests: Any = parsed.with_keys(service.requests(parsed))
    send_rows(requests, rows_of(*FIRST))
    given = service.options.parse({**options, **CHANGES, "updateColumns": "given"})
    partial: Any = given.with_keys(service.requests(given))
    for rows in (rows_of(*SECOND), rows_of(*SECOND), rows_of(SECOND[0], SECOND[4]).drop_columns(["text"])):
        counters = send_rows(partial, rows)
        assert (counters.delivered, counters.retried) == (rows.num_rows, 0)


@pytest.mark.slow
def test_dynamodb_updates_items(aws_service: AwsServer) -> None:
    place = AwsPlace.new(aws_service, "dynamodb")
    send("dynamodb", place.options())

    rows = [
        {name: int(value) if name != "text" else value for name, value in row.items()} for row in place.rows()
    ]
    assert sorted(rows, key=lambda row: row["id"]) == EXPECTED


@pytest.mark.slow
def test_search_updates_documents(opensearch: OpenSearchServer) -> None:
    place = SearchPlace.new(opensearch, "opensearch", opensearch.url)
    send("opensearch", place.options())

    assert sorted(opensearch.rows(place.index), key=lambda row: row["id"]) == EXPECTED
    opensearch.delete(place.index)


@pytest.mark.slow
def test_redis_sets_fields_of_hashes(redis_service: RedisServer) -> None:
    send("redis", {"url": redis_service.url, "structure": "row", "key": "rows:{id}"})

    assert sorted(redis_service.hashes("rows:*"), key=lambda row: row["id"]) == [
        {name: str(value) for name, value in row.items()} for row in EXPECTED
    ]


def test_http_sends_the_given_columns(http_service: HttpRows) -> None:
    send("http", {"url": f"{http_service.url}/{{id}}", "format": "row", "method": "PATCH"})

    assert sorted(http_service.resources(), key=lambda row: row["id"]) == EXPECTED
