"""Whole rows as Avro and Protobuf."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from penstock import ConfigurationError, SchemaMismatchError
from penstock.datasource.kafka.options import KafkaOptions
from penstock.writers.kafka import avro, protobuf
from penstock.writers.kafka.proto_text import parse
from penstock.writers.kafka.schemas import ValueSchemas

INSTANT = pa.array([1_700_000_000_123_456, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
COMMON = {
    "id": pa.array([2**40, None]),
    "small": pa.array([-3, None], pa.int16()),
    "name": pa.array(["ä", None]),
    "at": INSTANT,
    "raw": pa.array([b"\xff", None]),
    "ok": pa.array([True, None]),
    "x": pa.array([0.5, None], pa.float32()),
    "parts": pa.array([{"n": 1, "tags": ["a"]}, None]),
    "rates": pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
}


def avro_rows(text: str, rows: pa.RecordBatch) -> list[Any]:
    schema = fastavro.parse_schema(json.loads(text))
    values = avro.encoder(text, rows.schema).values(rows)
    return [fastavro.schemaless_reader(io.BytesIO(value), schema, None) for value in values]


def test_columns_keep_their_values_in_avro() -> None:
    """Another library reads them, with the types of Spark's `to_avro`."""
    rows = pa.record_batch(
        {
            **COMMON,
            "amount": pa.array(
                [Decimal("-12345678901234567890123456789012345.67"), None], pa.decimal128(38, 2)
            ),
            "day": pa.array([date(1969, 12, 31), None]),
            "items": pa.array([[{"price": Decimal("1.50"), "on": date(2000, 1, 1)}, None], None]),
        }
    )
    first, second = avro_rows(avro.derived(rows.schema, "com.example.Order"), rows)

    assert first == {
        "id": 2**40,
        "small": -3,
        "name": "ä",
        "at": datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=timezone.utc),
        "raw": b"\xff",
        "ok": True,
        "x": 0.5,
        "parts": {"n": 1, "tags": ["a"]},
        "rates": {"k": 1.5},
        "amount": Decimal("-12345678901234567890123456789012345.67"),
        "day": date(1969, 12, 31),
        "items": [{"price": Decimal("1.50"), "on": date(2000, 1, 1)}, None],
    }
    assert set(second.values()) == {None}


def test_columns_keep_their_values_in_protobuf() -> None:
    rows = pa.record_batch(COMMON)
    encoder = protobuf.encoder(protobuf.derived(rows.schema, "a.Order"), rows.schema, "a.Order")
    first, second = encoder.values(rows)

    message = encoder.message.FromString(first[1:])
    assert first[0] == 0  # index of the message
    assert (message.id, message.small, message.name, message.raw) == (2**40, -3, "ä", b"\xff")
    assert (message.at.seconds, message.at.nanos) == (1_700_000_000, 123_456_000)
    assert (message.ok, message.x, dict(message.rates)) == (True, 0.5, {"k": 1.5})
    assert (message.parts.n, list(message.parts.tags)) == (1, ["a"])
    assert second == b"\0"


def test_fields_of_protobuf_keep_their_numbers() -> None:
    before = "\n".join(
        [
            'syntax = "proto3";  // of another writer',
            "/* two */ message Row { reserved 2, 9 to 10; optional int64 id = 7; In in = 3; string old = 4;",
            "message In { int32 n = 5; } }",
        ]
    )
    rows = pa.schema([("id", pa.int64()), ("new", pa.string()), ("in", pa.struct([("n", pa.int32())]))])
    (message,) = parse(protobuf.derived(rows, "Row", before))[0].message_type

    assert {field.name: field.number for field in message.field} == {"id": 7, "new": 11, "in": 3}
    assert message.nested_type[0].field[0].number == 5
    assert parse(protobuf.derived(rows, "Row", before))[1].messages["Row"].reserved == {2, 4, 9, 10}


GIVEN = """
syntax = "proto3"; package shop;
message Other { int32 x = 1; }
message Order {
  option deprecated = true;
  string id = 1 [json_name = "ID"];
  oneof payment { string card = 2; double cash = 3; }
  Kind kind = 4; repeated Other others = 5; map<string, Other> named = 6;
  enum Kind { UNKNOWN = 0; GIFT = 1; }
}
"""


def test_a_given_schema_of_protobuf_is_used_as_it_is() -> None:
    others = pa.array([[{"x": 1}]], pa.list_(pa.struct([("x", pa.int32())])))
    rows = pa.record_batch({"id": ["a"], "cash": [1.5], "kind": ["GIFT"], "others": others})
    encoder = protobuf.encoder(GIVEN, rows.schema, "Order")
    (value,) = encoder.values(rows)

    assert value[:2] == b"\x02\x02"  # one index, which is 1
    message = encoder.message.FromString(value[2:])
    assert (message.id, message.WhichOneof("payment"), message.kind) == ("a", "cash", 1)
    assert message.others[0].x == 1
    assert protobuf.full_name(GIVEN, "Order") == "shop.Order"


RECORD = {"type": "record", "name": "Row", "namespace": "a", "fields": []}


def of_fields(*fields: Mapping[str, Any]) -> str:
    return json.dumps({**RECORD, "fields": list(fields)})


def test_a_given_schema_of_avro_is_used_as_it_is() -> None:
    text = of_fields(
        {"name": "id", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "more", "type": ["null", "Kind"], "default": None},
        {
            "name": "amount",
            "type": {
                "type": "fixed",
                "name": "F",
                "size": 4,
                "logicalType": "decimal",
                "precision": 6,
                "scale": 3,
            },
        },
    )
    rows = pa.record_batch(
        {
            "kind": ["B"],
            "id": pa.array([7], pa.int32()),
            "at": pa.array([1000], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "amount": pa.array([Decimal("-1.5")], pa.decimal128(4, 1)),
        }
    )
    (row,) = avro_rows(text, rows)
    assert row == {
        "id": 7,
        "at": datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=timezone.utc),
        "kind": "B",
        "more": None,
        "amount": Decimal("-1.500"),
    }


@pytest.mark.parametrize(
    ("fields", "rows", "problem"),
    [
        ([{"name": "id", "type": "int"}], {"id": pa.array([None], pa.int32())}, "cannot be written"),
        (
            [{"name": "id", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}],
            {"id": ["B"]},
            "cannot be written",
        ),
        (
            [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
            {"at": INSTANT[:1]},
            "value in at .* has microseconds",
        ),
        (
            [{"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}}],
            {"d": pa.array([Decimal(100)], pa.decimal128(3, 0))},
            "more digits than the schema",
        ),
    ],
)
def test_values_that_a_given_schema_does_not_hold_are_bad_rows(
    fields: list[Any], rows: Mapping[str, Any], problem: str
) -> None:
    batch = pa.record_batch(dict(rows))
    with pytest.raises(SchemaMismatchError, match=problem):
        avro.encoder(of_fields(*fields), batch.schema).values(batch)


def test_null_in_a_list_of_protobuf_is_a_bad_row() -> None:
    rows = pa.record_batch({"tags": [["a", None]]})
    with pytest.raises(SchemaMismatchError, match="lists and maps have no NULL"):
        protobuf.encoder(protobuf.derived(rows.schema, "Row"), rows.schema, "Row").values(rows)


@pytest.mark.parametrize(
    ("schema", "rows", "problem"),
    [
        (of_fields(), {"id": pa.int64()}, "the schema has no field id, which would be lost"),
        (of_fields({"name": "id", "type": "int"}), {"id": pa.int64()}, "id is int64, and the schema has"),
        (of_fields({"name": "id", "type": "int"}), {}, "the field id has no default"),
        (GIVEN, {"nr": pa.int64()}, "the schema has no field nr, which would be lost"),
        (GIVEN, {"id": pa.int64()}, "id is int64"),
        (GIVEN, {"kind": pa.list_(pa.string())}, "kind is list"),
        (GIVEN, {"others": pa.string()}, "others is string, and the schema has a repeated field"),
    ],
)
def test_columns_that_do_not_fit_a_given_schema_are_refused(
    schema: str, rows: Mapping[str, pa.DataType], problem: str
) -> None:
    schemas = ValueSchemas("protobuf" if schema == GIVEN else "avro", None, record_name="Order", given=schema)
    with pytest.raises(SchemaMismatchError, match=problem):
        schemas.check_schema(pa.schema(list(rows.items())))


@pytest.mark.parametrize(
    "columns",
    [
        {"a b": pa.int64()},
        {"x": pa.map_(pa.date32(), pa.int64())},
        {"x": pa.duration("us")},
        {"x": pa.list_(pa.list_(pa.duration("us")))},
    ],
)
def test_columns_without_a_type_in_the_format_are_refused(columns: Mapping[str, pa.DataType]) -> None:
    rows = pa.schema(list(columns.items()))
    for derived in (avro.derived, protobuf.derived):
        with pytest.raises(SchemaMismatchError, match=r"cannot be sent to Kafka as (Avro|Protobuf):\n  - "):
            derived(rows, "Row")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "only proto3"),
        ("no schema", "'no' is not supported"),
        ("message A {}", "only proto3"),
        ('syntax = "proto2"; message A {}', "only proto3"),
        ('syntax = "proto3";', "it has no message"),
        ('syntax = "proto3"; message A { int32 x = ; }', ""),
        ('syntax = "proto3"; message A { int32 x = 1 y; }', "'y' after a field"),
        ('syntax = "proto3"; message A { Missing x = 1; }', ""),
        ('syntax = "proto3"; import "other.proto"; message A {}', r"it imports other\.proto"),
        ('syntax = "proto3"; message A {} @', "'@' is not expected"),
        ('syntax = "proto3"; message A { extensions 4 to 8; }', ""),
        ('syntax = "proto3"; message A { reserved 1 to max; }', "it reserves more than 10,000"),
        ('syntax = "proto3"; message A { int32 x = 1; ', ""),
    ],
)
def test_what_is_no_schema_of_protobuf_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s)Protobuf schema cannot be read.*{problem}"):
        protobuf.encoder(text, pa.schema([]), "A")


@pytest.mark.parametrize("text", ["", "[]", '{"type": "int"}'])
def test_what_is_no_schema_of_avro_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Avro schema is none of a record"):
        avro.encoder(text, pa.schema([]))


def test_tasks_check_rows_without_the_registry() -> None:
    """They do not get its address or its password."""
    given = {
        "bootstrapServers": "h",
        "topic": "t",
        "valueFormat": "avro",
        "valueSchema": of_fields({"name": "id", "type": "int"}),
        "registry.url": "http://127.0.0.1:1",
        "registry.basic.auth.user.info": "u:geheim",
    }
    options = KafkaOptions.parse(given)
    assert "geheim" not in repr(options) + repr(options.given) + repr(options.schemas)
    records = options.records
    assert records.schemas is not None
    in_task = ValueSchemas("avro", None, given=given["valueSchema"], is_in_task=True)
    rows = pa.record_batch({"id": pa.array([1], pa.int32())})
    assert in_task.values(rows, ["t"]) == [b"\0\0\0\0\0\2"]
    assert b"geheim" not in pickle.dumps(in_task)
    with pytest.raises(ConfigurationError, match=r"needs registry\.url"):
        ValueSchemas("avro", None, given=given["valueSchema"]).values(rows, ["t"])
