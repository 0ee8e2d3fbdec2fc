"""Changes by key as requests of each service: what is sent, and what its answers mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.support.aws import given
from tests.support.service_places import service_of

from penstock.committers.errors import ConfigurationError, SchemaMismatchError
from penstock.committers.requests.contract import RowPlace
from penstock.datasource.requests.changing import ChangingRequests
from penstock.writers.aws.dynamodb_changes import (
    ItemDeletion,
    ItemUpdate,
    item_of,
    result_of_update,
    write_request,
)
from penstock.writers.changes.row_kinds import KEPT
from penstock.writers.requests.acknowledgements import UNACKNOWLEDGED
from penstock.writers.requests.http import AddressedRow
from penstock.writers.requests.results import DELIVERED, DeadLetter, Dropped, Fatal, Retry
from penstock.writers.row_log.writer import RowLogWriters
from penstock.writers.search.results import result_of_item

GIVEN: Mapping[str, dict[str, str]] = {
    "dynamodb": {**given("dynamodb"), "keyColumns": "id"},
    "http": {"url": "https://h/rows/{id}", "format": "row", "method": "PATCH"},
    "opensearch": {"url": "https://h:9200", "index": "rows"},
    "redis": {"url": "redis://h:6379/0", "structure": "set", "key": "rows:{id}"},
}
CHANGES = {"writeMode": "upsert", "keys": "id", "orderBy": "n", "deleteWhen": "op = 'd'", "dropColumns": "op"}
PLACE = RowPlace("q1", 7, 2, 40, 100)
ROWS = pa.record_batch(
    {"id": [1, 2, 3], "n": [5, 6, 7], "text": ["a", None, None], "op": ["u", "d", "u"]},
    schema=pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string()), ("op", pa.string())]),
)


def requests_of(kind: str, partial: tuple[str, ...] = (), **options: str) -> Any:
    """Return the requests of a query with these options."""
    service = service_of(kind)
    parsed = service.options.parse({**GIVEN[kind], **CHANGES, **options})
    requests = parsed.with_keys(service.requests(parsed))
    assert isinstance(requests, ChangingRequests)
    if partial:
        requests = replace(requests, changes=replace(requests.changes, partial_columns=partial))
    return requests


def sent(kind: str, rows: pa.RecordBatch = ROWS, partial: tuple[str, ...] = (), **options: str) -> list[Any]:
    requests = requests_of(kind, partial, **options)
    requests.check_schema(rows.schema)
    check(requests, rows)
    return [entry.payload for entry in requests.entries(rows, PLACE)]


def check(requests: Any, rows: pa.RecordBatch) -> None:
    """Check the rows as tasks do."""
    requests.writers(rows.schema, lambda check: RowLogWriters("/log", {}, check)).check(rows)


@pytest.mark.parametrize("kind", GIVEN)
def test_entries_have_the_place_and_the_key_of_their_row(kind: str) -> None:
    """Rows of one key wait for each other."""
    requests = requests_of(kind)
    entries = requests.entries(ROWS, PLACE)

    assert [entry.position for entry in entries] == [100, 101, 102]
    assert [
        entry.id.startswith(f"q1-7-2-{row}") for entry, row in zip(entries, (40, 41, 42), strict=True)
    ] == [True] * 3
    assert len({entry.key for entry in entries}) == 3
    assert requests.entries(ROWS.slice(1, 1), PLACE)[0].key == entries[1].key
    assert requests.requests.settings.order_by_key


def test_redis_deletes_keys_and_fields() -> None:
    row = b'{"id":1,"n":5,"text":"a"}'
    assert sent("redis")[:2] == [("SET", "rows:1", row), ("DEL", "rows:2")]
    of_hash = sent("redis", structure="hash", key="rows", field="{id}")
    assert of_hash[:2] == [("HSET", "rows", "1", row), ("HDEL", "rows", "2")]


def test_a_row_as_a_hash_of_redis_has_a_field_for_each_column() -> None:
    """NULL is no field. Rows that keep values leave their fields as they are."""
    rows = ROWS.append_column("amount", pa.array([Decimal("1.10"), None, None], pa.decimal128(9, 2)))
    whole = sent("redis", rows, structure="row")
    assert [getattr(one, "commands", one) for one in whole] == [
        (("HSET", "rows:1", "id", "1", "n", "5", "text", "a", "amount", "1.10"),),
        ("DEL", "rows:2"),
        (("HSET", "rows:3", "id", "3", "n", "7"), ("HDEL", "rows:3", "text", "amount")),
    ]
    kept = sent("redis", rows, ("text",), structure="row")
    assert kept[2].commands == (("HSET", "rows:3", "id", "3", "n", "7"), ("HDEL", "rows:3", "amount"))


def test_dynamodb_puts_deletes_and_updates_items() -> None:
    put, deletion, update = sent("dynamodb", partial=("text",))
    assert put == {"id": {"N": "1"}, "n": {"N": "5"}, "text": {"S": "a"}}
    assert deletion == ItemDeletion({"id": {"N": "2"}})
    assert isinstance(update, ItemUpdate)
    assert update.arguments == {
        "Key": {"id": {"N": "3"}},
        "ReturnConsumedCapacity": "TOTAL",
        "UpdateExpression": "SET #n0 = :v0",
        "ExpressionAttributeNames": {"#n0": "n"},
        "ExpressionAttributeValues": {":v0": {"N": "7"}},
    }
    removing = ItemUpdate.of({"id": {"N": "1"}}, ["id"], ["id", "a", "b"], {"b"})
    assert removing.arguments["UpdateExpression"] == "REMOVE #n0"
    assert "UpdateExpression" not in ItemUpdate.of({"id": {"N": "1"}}, ["id"], ["id", "b"], {"b"}).arguments
    assert [item_of(write_request(one)) for one in (put, deletion)] == [put, deletion.key]


def test_an_update_of_an_item_is_acknowledged_by_the_name_of_its_table() -> None:
    assert result_of_update({"ConsumedCapacity": {"TableName": "t"}}) == DELIVERED
    answers: list[Any] = [{}, None, {"ConsumedCapacity": {}}, [], "<html>"]
    for answer in answers:
        assert result_of_update(answer) == UNACKNOWLEDGED


def test_http_sends_the_method_of_what_a_row_does() -> None:
    put, deletion, patch = sent("http", partial=("text",))
    assert put == AddressedRow("https://h/rows/1", b'{"id":1,"n":5,"text":"a"}')
    assert deletion == AddressedRow("https://h/rows/2", None, "DELETE")
    assert patch.body == b'{"id":3,"n":7}'
    assert sent("http", deleteMethod="POST")[1] == AddressedRow("https://h/rows/2", b'{"id":2}', "POST")


def test_search_indexes_deletes_and_updates_documents() -> None:
    index, deletion, update = (
        [json.loads(line) for line in one.splitlines()] for one in sent("opensearch", partial=("text",))
    )
    assert index == [{"index": {"_id": "1"}}, {"id": 1, "n": 5, "text": "a"}]
    assert deletion == [{"delete": {"_id": "2"}}]
    assert update == [{"update": {"_id": "3"}}, {"doc": {"id": 3, "n": 7}, "doc_as_upsert": True}]


def test_an_id_of_several_columns_is_an_array_of_their_texts() -> None:
    """So different keys never have the same id."""
    rows = pa.record_batch({"id": ['a","b', "a"], "n": [1, 1], "k": ["c", 'b","c'], "op": ["u", "d"]})
    actions = [json.loads(one.splitlines()[0]) for one in sent("opensearch", rows, keys="id, k")]
    assert [next(iter(one.values()))["_id"] for one in actions] == ['["a\\",\\"b","c"]', '["a","b\\",\\"c"]']


@pytest.mark.parametrize(
    ("value", "version"),
    [
        (pa.scalar(7, pa.int32()), 7),
        (pa.scalar(Decimal(2**63 - 1), pa.decimal128(20, 0)), 2**63 - 1),
        (pa.scalar(Decimal(12), pa.decimal128(20, 0)), 12),
        (pa.scalar(date(1970, 1, 3), pa.date32()), 2),
        (pa.scalar(datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc), pa.timestamp("us", "UTC")), 1_000_000),
    ],
)
def test_with_late_rows_ignored_the_order_is_the_version_of_a_document(
    value: pa.Scalar, version: int
) -> None:
    rows = pa.record_batch([pa.array([1, 2]), pa.repeat(value, 2), pa.array(["u", "d"])], ["id", "n", "op"])
    for one in sent("opensearch", rows, lateRows="ignore"):
        (place,) = json.loads(one.splitlines()[0]).values()
        assert (place["version"], place["version_type"]) == (version, "external_gte")


def test_the_version_of_a_message_is_its_position_in_the_log() -> None:
    service = service_of("opensearch")
    options = {"writeMode": "upsert", "keys": "id", "lateRows": "ignore", "changes": "debezium"}
    parsed = service.options.parse({**GIVEN["opensearch"], **options, "valueColumns": "id BIGINT"})
    requests: Any = service.requests(parsed)
    assert requests.changes.version == "_change_position"


@pytest.mark.parametrize(
    "value",
    [
        -1,
        date(1969, 12, 31),
        datetime(1969, 12, 31, tzinfo=timezone.utc),
        Decimal(2**63),
        Decimal("1.5"),
        "1",
        None,
    ],
)
def test_an_order_that_is_no_version_is_refused(value: Any) -> None:
    """By its type before any row moves, by its value as a bad row."""
    rows = pa.record_batch([pa.array([1]), pa.array([value]), pa.array(["d"])], ["id", "n", "op"])
    with pytest.raises(SchemaMismatchError, match="orderBy"):
        sent("opensearch", rows, lateRows="ignore")


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("redis", {}, "updateColumns: A row is one JSON text"),
        ("http", {"method": "PUT"}, "Partial rows need method=PATCH"),
        ("http", {"format": "template", "bodyTemplate": '{{"t": {text}}}'}, "Partial rows need method=PATCH"),
        ("opensearch", {"lateRows": "ignore"}, "do not take external versions for updates"),
        ("opensearch", {"pipeline": "p"}, "run none for updates"),
    ],
)
def test_partial_rows_are_refused_by_name_where_a_service_cannot(
    kind: str, options: dict[str, str], said: str
) -> None:
    """Also a single row that does not have all values, as envelopes of databases may have."""
    requests = requests_of(kind, ("text",), **options)
    with pytest.raises(ConfigurationError, match=said):
        requests.check_schema(ROWS.schema)
    with pytest.raises(SchemaMismatchError, match=said.removeprefix("updateColumns: ")):
        requests.entries(ROWS, PLACE)


def test_a_row_says_itself_which_values_it_keeps() -> None:
    """As those that were messages do. No service gets the column that says it."""
    said = pa.array([None, None, ["text"]], pa.list_(pa.string()))
    rows = ROWS.append_column(KEPT, said)
    update = AddressedRow("https://h/rows/3", b'{"id":3,"n":7}')
    assert sent("http", rows) == [*sent("http")[:2], update]
    assert [type(one) for one in sent("dynamodb", rows)] == [dict, ItemDeletion, ItemUpdate]
    assert b"doc_as_upsert" in sent("opensearch", rows)[2]
    whole = ROWS.append_column(KEPT, pa.nulls(3, said.type))
    for kind in GIVEN:
        assert sent(kind, whole) == sent(kind)
    with pytest.raises(SchemaMismatchError, match="A row does not have the values of text"):
        check(requests_of("redis"), rows)


def test_with_all_columns_partial_no_row_replaces_what_the_service_has() -> None:
    """Columns that the query does not have keep their values, too. Named ones do so alone."""
    rows = ROWS.slice(0, 1)
    for columns, operation in (("given", "update"), ("other", "update"), ("text", "index"), ("all", "index")):
        (payload,) = sent("opensearch", rows, updateColumns=columns)
        assert payload.startswith(b'{"%s"' % operation.encode())
    (update,) = sent("dynamodb", rows, updateColumns="given")
    assert update.attributes == {"n": {"N": "5"}, "text": {"S": "a"}}


def test_an_update_of_a_map_is_refused() -> None:
    rows = ROWS.append_column("m", pa.array([None] * 3, pa.map_(pa.string(), pa.int64())))
    with pytest.raises(ConfigurationError, match="MAP column m"):
        requests_of("opensearch", ("text",)).check_schema(rows.schema)


@pytest.mark.parametrize(
    ("operation", "outcome", "is_versioned", "result"),
    [
        ("delete", {"status": 200, "result": "deleted"}, False, DELIVERED),
        ("delete", {"status": 404, "result": "not_found"}, False, DELIVERED),
        ("delete", {"status": 404, "error": {"type": "index_not_found_exception"}}, False, Fatal),
        ("delete", {"status": 404}, False, Fatal),
        ("delete", {"status": 409, "error": {"type": "version_conflict_engine_exception"}}, True, Dropped),
        ("index", {"status": 409, "error": {"type": "version_conflict_engine_exception"}}, True, Dropped),
        ("index", {"status": 409, "error": {"type": "version_conflict_engine_exception"}}, False, Retry),
        ("update", {"status": 409, "error": {"type": "version_conflict_engine_exception"}}, False, Retry),
        ("update", {"status": 200, "result": "noop"}, False, DELIVERED),
        ("update", {"status": 400, "error": {"type": "mapper_parsing_exception"}}, False, DeadLetter),
    ],
)
def test_what_the_answers_of_search_mean(
    operation: str, outcome: dict[str, Any], is_versioned: bool, result: Any
) -> None:
    found = result_of_item({operation: outcome}, operation, is_versioned=is_versioned)
    assert found == result or (isinstance(result, type) and isinstance(found, result))
    assert result_of_item({"other": outcome}, operation, is_versioned=is_versioned) == UNACKNOWLEDGED
