"""Messages of sources of changes, as they become rows: `changes=debezium` and the others."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.debezium_messages import (
    AVRO_SCHEMA,
    COLUMNS,
    KAFKA,
    as_columns,
    flattened,
    from_kafka,
    in_avro,
    mongodb,
    mysql,
    postgres,
    row,
    texts,
    unscaled,
    with_schema,
)
from tests.support.lakes import DeltaLake

from penstock.committers.errors import ConfigurationError, PenstockError, SchemaMismatchError
from penstock.committers.store.sql import open_store_in_memory
from penstock.datasource.changes.planning import plan_changes
from penstock.datasource.changes.value_columns import _TYPES, value_columns
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DESTINATION
from penstock.datasource.spark.types import ARROW_TYPES
from penstock.testing.conformance.query import Query
from penstock.writers.changes.envelopes import json_values
from penstock.writers.changes.envelopes.decoder import RowDecoder
from penstock.writers.changes.envelopes.unavailable import PLACEHOLDER
from penstock.writers.changes.row_kinds import KEPT

UPSERT = {"writeMode": "upsert", "keys": "id", "changes": "debezium"}
PLAIN = (
    "id BIGINT, name STRING, amount DECIMAL(10,2) COMMENT 'Decimal', at TIMESTAMP COMMENT 'MicroTimestamp'"
)
AT = datetime(2023, 7, 22, 4, 26, 40, 123456, tzinfo=timezone.utc)
MICROS = 1_690_000_000_123_456
MESSAGES = [
    postgres("r", 90, after=row(1, "Ann", 100), snapshot="true"),
    postgres("c", 100, after=row(2, "Bea", -250, MICROS)),
    postgres("u", 110, before=row(1, None), after=row(3, "Ann", 101)),
    postgres("d", 120, before=row(2, None)),
    None,
    postgres("c", 130, after=row(4, None)),
]
DECODED = [
    (1, "Ann", Decimal("1.00"), None, False, 90),
    (1, None, None, None, True, 110),
    (2, "Bea", Decimal("-2.50"), AT, False, 100),
    (2, None, None, None, True, 120),
    (3, "Ann", Decimal("1.01"), None, False, 110),
    (4, None, None, None, False, 130),
]
"""The rows of `MESSAGES`: columns, whether they delete, position."""


def decoded(rows: pa.Table, **options: str) -> pa.RecordBatch:
    """The rows of messages, as tasks decode them."""
    changes = DeltaOptions.parse({"path": "/t", **UPSERT, **options}).changes
    assert changes is not None
    kinds = pickle.loads(pickle.dumps(plan_changes(rows.schema, changes).kinds))
    (batch,) = rows.combine_chunks().to_batches()
    decode: Callable[[pa.RecordBatch], pa.RecordBatch] = kinds.decode
    return decode(batch)


def rows_of(batch: pa.RecordBatch, *names: str) -> list[tuple[Any, ...]]:
    columns = [batch.column(name).to_pylist() for name in names]
    return sorted(zip(*columns, strict=True), key=lambda one: [(value is None, value) for value in one])


def in_order(batch: pa.RecordBatch, *names: str) -> list[tuple[Any, ...]]:
    order = [("_change_position", "ascending"), ("_change_sequence", "ascending")]
    table = pa.Table.from_batches([batch]).sort_by(order)
    return list(zip(*[table[name].to_pylist() for name in names], strict=True))


# Debezium, in each form -----------------------------------------------------------------------------

ROW = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def typed(message: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The message with the values of columns of Spark."""
    if message is None:
        return None
    known = {one[0]: one for one in DECODED if not one[4]}

    def image(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if given is None or (given.get("name", "") is None and given["id"] != 4):
            return None if given is None else {"id": given["id"]}
        return dict(zip(ROW.names, known[given["id"]][:4], strict=True))

    return {**message, "before": image(message["before"]), "after": image(message["after"])}


def columns_of(messages: Sequence[Any]) -> pa.Table:
    return as_columns([typed(one) for one in messages], list(ROW))


def flat_columns(messages: Sequence[Any]) -> pa.Table:
    flat = [flattened(typed(one) or {}) for one in messages if one is not None]
    own = [("__deleted", pa.string()), ("__op", pa.string()), ("__lsn", pa.int64())]
    schema = pa.schema([*ROW, *(pa.field(*one) for one in own), pa.field("__source_snapshot", pa.string())])
    return pa.table([pa.array([one.get(f.name) for one in flat], f.type) for f in schema], schema=schema)


FORMS: Mapping[str, tuple[Callable[[Sequence[Any]], pa.Table], dict[str, str]]] = {
    "json": (lambda messages: from_kafka(texts(messages)), {"valueColumns": PLAIN}),
    "json with schemas": (
        lambda messages: from_kafka(texts([with_schema(one) for one in messages])),
        {"valueColumns": COLUMNS},
    ),
    "json with schema ids": (
        lambda messages: from_kafka([one and b"\0\0\0\x01\xff" + one for one in texts(messages)]),
        {"valueColumns": PLAIN},
    ),
    "json as strings": (
        lambda messages: from_kafka(texts(messages)).cast(KAFKA.set(1, pa.field("value", pa.string()))),
        {"valueColumns": PLAIN, "valueFormat": "json"},
    ),
    "avro": (
        lambda messages: from_kafka(in_avro(messages)),
        {"valueColumns": COLUMNS, "valueFormat": "avro", "avroSchema": AVRO_SCHEMA},
    ),
    "avro of confluent": (
        lambda messages: from_kafka(in_avro(messages, b"\0\0\0\0\7")),
        {"valueColumns": COLUMNS, "valueFormat": "avro-confluent", "avroSchema": AVRO_SCHEMA},
    ),
    "columns": (columns_of, {}),
}
FLAT_FORMS: Mapping[str, tuple[Callable[[Sequence[Any]], pa.Table], dict[str, str]]] = {
    "flattened json": (
        lambda messages: from_kafka(texts([None if one is None else flattened(one) for one in messages])),
        {"valueColumns": PLAIN},
    ),
    "flattened json with schemas": (
        lambda messages: from_kafka(
            texts([with_schema(None if one is None else flattened(one), is_flat=True) for one in messages])
        ),
        {"valueColumns": COLUMNS},
    ),
    "flattened columns": (flat_columns, {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_messages_of_postgres_become_the_same_rows_in_each_form(form: str) -> None:
    """A change of the key is two rows, a tombstone none."""
    rows, options = FORMS[form]
    batch = decoded(rows(MESSAGES), **options)
    assert rows_of(batch, *ROW.names, "_change_deleted", "_change_position") == DECODED
    assert batch.schema.names[:4] == ROW.names


@pytest.mark.parametrize("form", FLAT_FORMS)
def test_flattened_messages_become_rows(form: str) -> None:
    """They do not have the key before a change: Debezium writes a deletion of its own for it."""
    rows, options = FLAT_FORMS[form]
    batch = decoded(rows(MESSAGES), **options)
    expected = [one for one in DECODED if one[5] != 110 or not one[4]]
    assert rows_of(batch, *ROW.names, "_change_deleted", "_change_position") == expected


TYPES = (
    *("BIGINT", "INT", "STRING", "DOUBLE", "FLOAT", "BOOLEAN", "DATE", "BINARY", "TIMESTAMP"),
    *("DECIMAL(10,2)", "DECIMAL(38,0)", "DECIMAL(10,2) COMMENT 'Decimal'"),
    *("TIMESTAMP COMMENT 'MicroTimestamp'", "TIMESTAMP_NTZ COMMENT 'Timestamp'"),
)
VALUES: Sequence[Any] = (
    *(None, 0, 1, -5, 2**53 + 1, 2**63, 12.5, 7.0, 1e300, 0.1, True, False),
    *("", "1", "1.50", "abc", "é\n\U0001f600", '"}', "\0", "true", "AAE=", PLACEHOLDER),
    *("2020-01-02", "2020-01-02T03:04:05Z", "2020-01-02 03:04:05.123456789"),
)


@pytest.mark.parametrize("column", TYPES)
def test_both_parsers_return_the_same_rows(column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's, and Python's for what Arrow's does not read. They refuse the same messages."""
    rng = random.Random(column)

    def result(rows: pa.Table) -> pa.RecordBatch | None:
        try:
            return decoded(rows, valueColumns=f"id BIGINT, v {column}")
        except SchemaMismatchError:
            return None

    for _ in range(5):
        values = rng.sample(VALUES, rng.randrange(1, 3))
        messages = [postgres("u", n, after={"id": n, "v": rng.choice([*values, None])}) for n in range(10)]
        rows = from_kafka(texts(messages if rng.random() < 0.7 else list(map(flattened, messages))))
        by_arrow = result(rows)
        with monkeypatch.context() as patched:
            patched.setattr(json_values, "parse_columns", lambda *_: None)
            by_python = result(rows)
        assert (by_arrow is None) == (by_python is None)
        assert by_arrow is None or by_python is None or by_arrow.equals(by_python), values


def hidden_among(value: Any) -> pa.Table:
    """A message among others, where the sample for Arrow's parser does not find it."""
    values = texts([postgres("c", n, after={"id": n, "v": 1.5}) for n in range(40)])
    values[33] = value if isinstance(value, bytes) else texts([value])[0]
    return from_kafka(values)


def test_messages_unlike_the_first_ones_are_read() -> None:
    """A number with more digits than a double has, and a message of another form."""
    columns = "id BIGINT, v DECIMAL(22,2)"
    large = hidden_among(postgres("c", 33, after={"id": 33, "v": 12345678901234567}))
    values = dict(rows_of(decoded(large, valueColumns=columns), "id", "v"))
    assert (values[33], values[0], len(values)) == (Decimal("12345678901234567.00"), Decimal("1.50"), 40)
    flat = hidden_among(flattened(postgres("c", 33, after={"id": 33, "v": 2.5})))
    values = dict(rows_of(decoded(flat, valueColumns=columns), "id", "v"))
    assert (values[33], values[0], len(values)) == (Decimal("2.50"), Decimal("1.50"), 40)


def test_a_value_is_one_message() -> None:
    two = b"".join(one or b"" for one in texts([postgres("c", n, after={"id": n}) for n in (50, 51)]))
    with pytest.raises(SchemaMismatchError, match=r"no JSON.* offset 133"):
        decoded(hidden_among(two), valueColumns="id BIGINT, v DOUBLE")
    documents = [mongodb("c", n, 1, {"_id": n}) for n in range(40)]
    documents[33] = {**documents[33], "after": '{"_id":33}{"_id":99}'}
    with pytest.raises(SchemaMismatchError, match=r"no JSON.* offset 133"):
        decoded(from_kafka(texts(documents)), valueColumns="_id BIGINT", keys="_id")
    (whole,) = in_avro(MESSAGES[:1])
    assert whole is not None
    options = {"valueColumns": COLUMNS, "valueFormat": "avro", "avroSchema": AVRO_SCHEMA}
    for content, problem in ((whole + b"\0", "bytes are left"), (whole[:-9], "not written with")):
        with pytest.raises(SchemaMismatchError, match=f"{problem}.* offset 101"):
            decoded(from_kafka([whole, content]), **options)
    with pytest.raises(SchemaMismatchError, match="For messages without them, use valueFormat=avro"):
        decoded(from_kafka([b"\1" + whole]), **{**options, "valueFormat": "avro-confluent"})


def test_messages_that_are_no_changes_are_left_out() -> None:
    """Tombstones, boundaries of transactions, changes of schemas, heartbeats, logical messages."""
    others = [
        None,
        {"status": "BEGIN", "id": "571:53195829", "ts_ms": 5, "event_count": None, "data_collections": None},
        {"status": "END", "id": "571:53195832", "ts_ms": 6, "event_count": 2, "data_collections": []},
        {"source": {"ts_ms": 1}, "ts_ms": 5, "databaseName": "d", "ddl": "ALTER TABLE t", "tableChanges": []},
        {"ts_ms": 5},
        {**postgres("m", 5), "message": {"prefix": "p", "content": "aGk="}},
        {"schema": None, "payload": None},
    ]
    assert decoded(from_kafka([*texts(others), b"null"]), valueColumns=PLAIN).num_rows == 0


def test_a_placeholder_keeps_the_value_of_its_column() -> None:
    columns = "id BIGINT, note STRING, raw BINARY, tags ARRAY<STRING>, ns ARRAY<INT>, m MAP<STRING,STRING>"
    kept: dict[str, Any] = {
        "note": PLACEHOLDER,
        "raw": "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==",
        "tags": [PLACEHOLDER],
        "ns": list(PLACEHOLDER.encode()),
        "m": {PLACEHOLDER: PLACEHOLDER},
    }
    given = {"note": "n", "raw": "cg==", "tags": ["t"], "ns": [1], "m": {"k": "v"}}
    messages = [
        postgres("u", 1, after={"id": 1, **kept}),
        postgres("u", 2, after={"id": 2, **given, "note": PLACEHOLDER}),
        postgres("u", 3, after={"id": 3, **given}),
    ]
    batch = decoded(from_kafka(texts(messages)), valueColumns=columns)
    assert batch.column(KEPT).to_pylist() == [list(kept), ["note"], None]
    assert batch.column("note").to_pylist() == [None, None, "n"]
    assert batch.column("tags").to_pylist() == [None, ["t"], ["t"]]
    flat = decoded(from_kafka(texts([flattened(messages[1])])), valueColumns="id BIGINT, note STRING")
    assert flat.column(KEPT).to_pylist() == [["note"]]


# Order ----------------------------------------------------------------------------------------------


def test_snapshot_rows_come_before_changes_at_their_position() -> None:
    messages = [
        postgres("u", 50, after=row(1, "change")),
        postgres("r", 50, after=row(1, "snapshot"), snapshot="last"),
        postgres("u", 49, after=row(1, "before")),
        postgres("r", 60, after=row(1, "again"), snapshot=True),
    ]
    batch = decoded(from_kafka(texts(messages)), valueColumns=PLAIN)
    assert [name for (name,) in in_order(batch, "name")] == ["before", "snapshot", "change", "again"]


def test_a_row_that_leaves_a_key_comes_before_one_that_gets_it() -> None:
    """At one position, without offsets."""
    messages = [postgres("u", 5, row(2, None), row(3)), postgres("u", 5, row(1, None), row(2, "new"))]
    batch = decoded(from_kafka(texts(messages)).drop_columns(["offset"]), valueColumns=PLAIN)
    of_two = [deleted for key, deleted in in_order(batch, "id", "_change_deleted") if key == 2]
    assert of_two == [True, False]


@pytest.mark.parametrize("late_rows", ["apply", "ignore"])
def test_the_order_may_be_the_time_in_the_source(late_rows: str) -> None:
    """Then it is a column."""
    messages = [
        postgres("u", 5, row(1, None), row(2, "b"), seconds=9),
        postgres("c", 6, after=row(1), seconds=8),
    ]
    rows, options = from_kafka(texts(messages)), {"orderBy": "_change_time", "lateRows": late_rows}
    batch = decoded(rows, valueColumns=PLAIN, **options)
    times = {datetime.fromtimestamp(seconds, timezone.utc) for seconds in (8, 9)}
    assert set(batch.column("_change_time").to_pylist()) == times
    changes = DeltaOptions.parse({"path": "/t", **UPSERT, "valueColumns": PLAIN, **options}).changes
    assert changes is not None
    columns = plan_changes(KAFKA, changes).columns.names
    assert columns == [*ROW.names, *(["_change_time"] if late_rows == "ignore" else [])]


def test_messages_of_mysql_are_ordered_by_the_number_of_the_file() -> None:
    messages = [
        mysql("u", "bin.1000000", 4, after=row(1, "5")),
        mysql("u", "bin.999999", 900, 1, after=row(1, "4")),
        mysql("u", "bin.999999", 900, 0, after=row(1, "3")),
        mysql("u", "bin.999999", 20, 7, after=row(1, "2")),
        mysql("r", "bin.999999", 20, 0, after=row(1, "1"), snapshot="last"),
    ]
    batch = decoded(from_kafka(texts(messages)), valueColumns=PLAIN)
    assert "".join(name for (name,) in in_order(batch, "name")) == "12345"


@pytest.mark.parametrize(
    ("source", "positions"),
    [
        ({"commit_lsn": "00000027:00000758:0005", "change_lsn": "00000027:00000758:0003"}, 0x27_00000758),
        ({"scn": "2122185", "commit_scn": "2122190"}, 2122185),
        ({"ts_ms": 12345}, 12345),
        ({}, 777),
    ],
)
def test_other_sources_have_a_position(source: Mapping[str, Any], positions: int) -> None:
    message = {"before": None, "after": row(1), "source": source, "op": "c", "ts_ms": 777}
    batch = decoded(from_kafka(texts([message])), valueColumns=PLAIN)
    assert batch.column("_change_position").to_pylist() == [positions]


def test_documents_of_mongodb_become_rows() -> None:
    """A deletion has only the key of Kafka's message."""
    columns = "_id STRING, n BIGINT, at TIMESTAMP, price DECIMAL(5,2), tags STRING"
    document = {
        "_id": {"$oid": "64bb8c00f0a1b2c3d4e5f601"},
        "n": {"$numberLong": "7"},
        "at": {"$date": 1_690_000_000_123},
        "price": {"$numberDecimal": "1.25"},
        "tags": ["a"],
    }
    plain = {"_id": {"$oid": "64bb8c00f0a1b2c3d4e5f602"}, "n": 3, "at": None, "price": 2.5, "tags": None}
    messages = [
        mongodb("c", 10, 1, document),
        mongodb("u", 10, 2, {**plain, "tags": 'say "{"'}),
        mongodb("d", 11, 1),
    ]
    keys = [None, None, json.dumps({"id": json.dumps(document["_id"])}).encode()]
    batch = decoded(from_kafka(texts(messages), keys), valueColumns=columns, keys="_id")
    first, second, third = in_order(batch, "_id", "n", "at", "price", "tags", "_change_deleted")
    at = datetime(2023, 7, 22, 4, 26, 40, 123000, tzinfo=timezone.utc)
    assert first == ("64bb8c00f0a1b2c3d4e5f601", 7, at, Decimal("1.25"), '["a"]', False)
    assert second == ("64bb8c00f0a1b2c3d4e5f602", 3, None, Decimal("2.50"), 'say "{"', False)
    assert third == ("64bb8c00f0a1b2c3d4e5f601", None, None, None, None, True)
    again = decoded(from_kafka(texts(messages[1:2])), valueColumns=columns, keys="_id")
    assert in_order(again, "_id", "price", "tags") == [(second[0], second[3], second[4])]
    of_columns = pa.Table.from_pylist(
        [{**{name: one[name] for name in ("op", "before", "after", "ts_ms")}} for one in messages],
        pa.schema(
            [("op", pa.string()), ("before", pa.string()), ("after", pa.string()), ("ts_ms", pa.int64())]
        ),
    )
    of_columns = of_columns.append_column("key", pa.array(keys, pa.binary()))
    parsed = decoded(of_columns, valueColumns=columns, keys="_id")
    assert in_order(parsed, "_id", "n", "at", "price", "tags", "_change_deleted") == [first, second, third]


# Types ----------------------------------------------------------------------------------------------

DAY = date(2023, 7, 22)
MILLIS_AT = AT.replace(microsecond=123000)


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("TIMESTAMP COMMENT 'io.debezium.time.Timestamp'", 1_690_000_000_123, MILLIS_AT),
        ("TIMESTAMP COMMENT 'NanoTimestamp'", MICROS * 1000 + 999, AT),
        ("TIMESTAMP_NTZ COMMENT 'MicroTimestamp'", MICROS, AT.replace(tzinfo=None)),
        ("TIMESTAMP", "2023-07-22T04:26:40.123456Z", AT),
        ("TIMESTAMP", "2023-07-22 06:26:40.123456+02:00", AT),
        ("TIMESTAMP_NTZ", "2023-07-22 04:26:40.123456", AT.replace(tzinfo=None)),
        ("DATE", 19560, DAY),
        ("DATE", "2023-07-22", DAY),
        ("DECIMAL(5,2)", "1.5", Decimal("1.50")),
        ("DECIMAL(5,2)", 1.5, Decimal("1.50")),
        ("DECIMAL(20,0)", 12345678901234567890, Decimal(12345678901234567890)),
        ("DECIMAL(5,2) COMMENT 'Decimal'", unscaled(150), Decimal("1.50")),
        ("DECIMAL(5,3)", {"scale": 1, "value": unscaled(15)}, Decimal("1.500")),
        ("BIGINT", "9007199254740993", 2**53 + 1),
        ("BOOLEAN", 1, True),
        ("DOUBLE", "NaN", pytest.approx(float("nan"), nan_ok=True)),
        ("STRING", {"a": [1]}, '{"a":[1]}'),
        ("STRING", 5, "5"),
        ("BINARY", "aGk=", b"hi"),
        ("BINARY COMMENT 'hex'", "6869", b"hi"),
        ("STRUCT<a: INT, b: ARRAY<STRING>>", {"a": 1, "b": ["x"]}, {"a": 1, "b": ["x"]}),
    ],
)
def test_values_get_the_type_of_their_column(column: str, value: object, expected: object) -> None:
    rows = from_kafka(texts([postgres("c", 1, after={"id": 1, "v": value})]))
    assert decoded(rows, valueColumns=f"id BIGINT, v {column}").column("v").to_pylist() == [expected]


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("TIMESTAMP", 1_690_000_000_123, "unless its unit is known"),
        ("DECIMAL(5,2)", "1.234", "data loss"),
        ("DECIMAL(5,2)", unscaled(150), "decimal128"),
        ("INT", 2**40, "not in range"),
        ("FLOAT", 1e300, "too large for float"),
        ("BOOLEAN", 2, "no boolean"),
        ("BINARY", "?", "base64"),
        ("ARRAY<INT>", "x", "cannot become"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(column: str, value: object, problem: str) -> None:
    rows = from_kafka(texts([postgres("c", 1, after={"id": 1, "v": value})]))
    with pytest.raises(SchemaMismatchError, match=f"after.v .*{problem}"):
        decoded(rows, valueColumns=f"id BIGINT, v {column}")


def test_columns_are_those_of_spark() -> None:
    assert set(_TYPES.values()) == set(ARROW_TYPES.values())
    parsed = value_columns("`a b` array<struct<x: int, y decimal(5)>>, m map<string, double> NOT NULL")
    assert parsed.field("a b").type == pa.list_(
        pa.field("element", pa.struct([("x", pa.int32()), ("y", pa.decimal128(5, 0))]))
    )
    assert parsed.field("m").type == pa.map_(pa.string(), pa.float64())
    for text in ("id", "id bigin", "id INT, ID INT", "d DECIMAL(40,1)", "a" + " ARRAY<" * 5000):
        with pytest.raises(ConfigurationError, match="valueColumns"):
            value_columns(text)


def test_rows_for_several_targets_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fan-out gives each target the same rows."""
    changes = DeltaOptions.parse({"path": "/t", **UPSERT, "valueColumns": PLAIN}).changes
    assert changes is not None
    first, second = (pickle.loads(pickle.dumps(plan_changes(KAFKA, changes).kinds)) for _ in range(2))
    calls: list[pa.RecordBatch] = []
    real = RowDecoder._decoded

    def counted(decoder: RowDecoder, rows: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(rows)
        return real(decoder, rows)

    monkeypatch.setattr(RowDecoder, "_decoded", counted)
    (batch,), (other,) = (from_kafka(texts(MESSAGES)).to_batches() for _ in range(2))
    assert first.decode(batch) is second.decode(batch)
    assert first.decode(other).equals(first.decode(batch))
    assert [id(one) for one in calls] == [id(batch), id(other), id(batch)]


# Bad rows -------------------------------------------------------------------------------------------

BAD: Mapping[str, tuple[Any, str]] = {
    "no json": (b"{", "no JSON"),
    "no text": (b"\xff", "no text"),
    "two objects": (b'{"op":"c"}{"op":"c"}', "no JSON"),
    "no object": (b"[1]", "no object"),
    "nothing": (b"", "no JSON"),
    "another message": (b'{"a":1}', "no change event of Debezium"),
    "no row": (postgres("c", 1), "has no after"),
    "no key": (postgres("d", 1), "does not have its key"),
    "truncated": (postgres("t", 1), "TRUNCATE"),
    "no order": ({**postgres("c", 1, after=row(1)), "source": None, "ts_ms": None}, "no place in the order"),
    "no time": (postgres("c", 1, after=row(1), seconds=2**50), "cannot be decoded"),
    "no value": (postgres("c", 1, after={"id": "x"}), "after.id"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_message_that_cannot_be_decoded_is_refused_with_its_offset(bad: str) -> None:
    message, problem = BAD[bad]
    value = message if isinstance(message, bytes) else texts([message])[0]
    values = texts([postgres("c", n, after=row(n)) for n in range(7)])
    rows = from_kafka([*values[:5], value, *values[5:]])
    if bad == "no order":
        assert decoded(rows.drop_columns(["offset"]), valueColumns=PLAIN, orderBy="name").num_rows == 8
        rows = rows.drop_columns(["offset"])
        problem += ".* It is row 5"
    else:
        problem += ".* topic shop.public.customers, partition 0, offset 105"
    with pytest.raises(SchemaMismatchError, match=problem):
        decoded(rows, valueColumns=PLAIN)


def test_messages_that_were_not_parsed_are_refused() -> None:
    """`from_json` returns NULL for them. The column `value` tells them from tombstones."""
    messages = columns_of([*MESSAGES, None])
    lost = messages.append_column("value", pa.array([b"{}"] * len(messages), pa.binary()))
    assert decoded(messages).num_rows == len(DECODED)
    with pytest.raises(SchemaMismatchError, match="All fields of a message are NULL"):
        decoded(lost)


# Maxwell, DMS, feeds of tables ----------------------------------------------------------------------


def maxwell(kind: str, data: Any, **more: Any) -> dict[str, Any]:
    return {"database": "shop", "table": "t", "type": kind, "ts": 1_690_000_000, "data": data, **more}


def test_messages_of_maxwell_become_rows() -> None:
    """`old` has only what has changed."""
    messages = [
        maxwell("bootstrap-start", {}),
        maxwell("bootstrap-insert", {"id": 1, "name": "a"}),
        maxwell("bootstrap-complete", {}),
        maxwell("insert", {"id": 2, "name": "b"}, xid=7, xoffset=0, position="binlog.000002:30"),
        maxwell("update", {"id": 2, "name": "B"}, old={"name": "b"}, xid=7, xoffset=1),
        maxwell("update", {"id": 3, "name": "B"}, old={"id": 2}, xid=8, commit=True),
        maxwell("delete", {"id": 1, "name": "a"}, xid=9, commit=True),
        {"type": "table-alter", "database": "shop", "table": "t", "sql": "alter table t add c int"},
    ]
    rows = from_kafka(texts(messages))
    batch = decoded(rows, changes="maxwell", valueColumns="id BIGINT, name STRING")
    assert in_order(batch, "id", "name", "_change_deleted", "_change_position") == [
        *[(1, "a", False, 101), (2, "b", False, 103), (2, "B", False, 104)],
        *[(2, None, True, 105), (3, "B", False, 105), (1, None, True, 106)],
    ]
    with pytest.raises(SchemaMismatchError, match="output_binlog_position"):
        decoded(rows.drop_columns(["offset"]), changes="maxwell", valueColumns="id BIGINT")


def test_messages_of_maxwell_without_offsets_are_ordered_by_the_binary_log() -> None:
    messages = [
        maxwell("update", {"id": 1, "name": "4"}, position="binlog.000010:5", commit=True),
        maxwell("update", {"id": 1, "name": "3"}, position="binlog.000009:70", commit=True),
        maxwell("update", {"id": 1, "name": "2"}, position="binlog.000009:70", xoffset=10),
        maxwell("update", {"id": 1, "name": "1"}, position="binlog.000009:70", xoffset=9),
    ]
    rows = from_kafka(texts(messages)).drop_columns(["offset"])
    batch = decoded(rows, changes="maxwell", valueColumns="id BIGINT, name STRING")
    assert "".join(name for (name,) in in_order(batch, "name")) == "1234"


def test_messages_of_dms_become_rows() -> None:
    def dms(operation: str, data: Any, number: int = 1, **more: Any) -> dict[str, Any]:
        about = {
            "timestamp": f"2023-07-22T04:26:40.12345{number}Z",
            "record-type": "data",
            "operation": operation,
            "partition-key-type": "primary-key",
            "schema-name": "shop",
            "table-name": "t",
            "transaction-id": 85899353000,
        }
        return {"data": data, "metadata": about, **more}

    control = {
        "metadata": {**dms("x", {})["metadata"], "record-type": "control", "operation": "create-table"}
    }
    messages = [
        control,
        dms("load", {"id": 1, "name": "a"}),
        dms("insert", {"id": 2, "name": "b"}, 2),
        dms("update", {"id": 3, "name": "c"}, 3, **{"before-image": {"id": 2}}),
        dms("delete", {"id": 1, "name": None}, 4),
    ]
    expected = [(1, "a", False), (2, "b", False), (2, None, True), (3, "c", False), (1, None, True)]
    rows, columns = from_kafka(texts(messages)), "id BIGINT, name STRING"
    for given in (rows, rows.drop_columns(["offset"])):
        batch = decoded(given, changes="dms", valueColumns=columns)
        assert in_order(batch, "id", "name", "_change_deleted") == expected


def test_rows_of_dms_become_rows() -> None:
    """Of a full load `Op` may be NULL. Columns with BI_ have the values before a change."""
    rows = pa.table(
        {
            "Op": [None, "I", "U", "D"],
            "id": pa.array([1, 2, 3, 1]),
            "name": ["a", "b", "c", "a"],
            "seq": ["", "20230722-1", "20230722-2", "20230722-3"],
            "BI_id": pa.array([None, None, 2, None], pa.int64()),
        }
    )
    batch = decoded(rows, changes="dms", orderBy="seq")
    assert batch.schema.names[:3] == ["id", "name", "seq"]
    assert rows_of(batch, "id", "name", "_change_deleted") == [
        *[(1, "a", False), (1, None, True), (2, "b", False), (2, None, True), (3, "c", False)],
    ]
    with pytest.raises(ConfigurationError, match="changes=dms needs orderBy"):
        decoded(rows, changes="dms")


@pytest.mark.parametrize(
    ("name", "version", "types"),
    [
        ("delta-cdf", "_commit_version", ("insert", "update_preimage", "update_postimage", "delete")),
        ("iceberg-changelog", "_change_ordinal", ("INSERT", "UPDATE_BEFORE", "UPDATE_AFTER", "DELETE")),
    ],
)
def test_rows_of_a_change_feed_become_rows(name: str, version: str, types: Sequence[str]) -> None:
    """A row that was deleted and inserted in one version ends as the inserted one."""
    insert, before, after, delete = types
    rows = pa.table(
        {
            "id": pa.array([1, 1, 2, 3, 3]),
            "name": ["a", "a", "A", "new", "old"],
            "_change_type": [insert, before, after, insert, delete],
            version: pa.array([1, 2, 2, 2, 2]),
        }
    )
    batch = decoded(rows, changes=name)
    assert batch.schema.names[:2] == ["id", "name"]
    assert rows_of(batch, "id", "_change_position", "_change_sequence", "_change_deleted", "name") == [
        *[(1, 1, 5, False, "a"), (1, 2, 3, True, None), (2, 2, 5, False, "A")],
        *[(3, 2, 3, True, None), (3, 2, 5, False, "new")],
    ]
    with pytest.raises(ConfigurationError, match=f"The query has no {version}"):
        decoded(rows.drop_columns([version]), changes=name)


# Plans ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "options", "problem"),
    [
        (KAFKA, {}, "needs valueColumns"),
        (KAFKA, {"valueColumns": "id BIGINT", "keys": "nr"}, "keys names 'nr'"),
        (KAFKA, {"valueColumns": "id BIGINT", "valueFormat": "avro"}, "needs avroSchema"),
        (
            KAFKA,
            {"valueFormat": "avro", "valueColumns": "id INT", "avroSchema": "{}"},
            "no schema of a record",
        ),
        (KAFKA, {"valueColumns": "id BIGINT, _change_position INT"}, "adds a column _change_position"),
        (pa.schema([("id", pa.int64()), ("__op", pa.string())]), {}, "Without __deleted, deletions are"),
        (pa.schema([("payload", pa.struct([("op", pa.string())]))]), {}, "payload"),
        (
            pa.schema([("op", pa.string()), ("before", pa.int64()), ("after", pa.int64())]),
            {},
            "after is int64",
        ),
        (pa.schema([("op", pa.string()), ("after", pa.struct(ROW)), ("ts_ms", pa.int64())]), {}, "neither"),
        (
            pa.schema([(name, pa.struct(ROW)) for name in ("before", "after")] + [("op", pa.string())]),
            {},
            "no column that orders the messages. Keep the column offset",
        ),
        (pa.schema([("id", pa.int64()), ("__deleted", pa.string())]), {}, "add.fields=op,lsn,source.ts_ms"),
        (
            pa.schema([("type", pa.string()), ("data", pa.struct(ROW))]),
            {"changes": "maxwell"},
            "offset of Kafka, or position; or set orderBy",
        ),
        (pa.schema([("value", pa.int64())]), {"valueColumns": "id INT"}, "the column value is int64"),
        (pa.schema([("id", pa.int64())]), {"changes": "maxwell"}, "needs the columns type, data and old"),
        (KAFKA, {"changes": "delta-cdf"}, "The query has no _change_type"),
    ],
)
def test_a_query_without_the_columns_of_a_format_is_refused(
    rows: pa.Schema, options: dict[str, str], problem: str
) -> None:
    with pytest.raises(PenstockError, match=problem):
        decoded(rows.empty_table(), **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"changes": "debezum"}, "must be one of debezium, maxwell"),
        ({"deleteWhen": "op = 'd'"}, "deleteWhen: with changes=debezium the messages tell"),
        ({"changes": "delta-cdf", "valueColumns": "id INT"}, "valueColumns: changes=delta-cdf has its rows"),
        ({"avroSchema": "{}"}, "avroSchema: only a query with valueFormat=avro"),
        ({"registry.url": "http://h"}, "registry.*: only a query with valueFormat=avro-confluent"),
        ({"writeMode": "append"}, "changes: only a query with writeMode=upsert has it"),
    ],
)
def test_options_that_do_not_fit_a_format_are_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        DeltaOptions.parse({"path": "/t", **UPSERT, **options})


# Through a table ------------------------------------------------------------------------------------


@dataclass
class Place:
    options: dict[str, str]
    destination: Any = DESTINATION


def lake_and_query(folder: Path, **options: str) -> tuple[DeltaLake, Query]:
    lake = DeltaLake(folder / "table")
    return lake, Query(Place({**lake.options, **UPSERT, "valueColumns": PLAIN, **options}))


def random_batches(seed: int) -> tuple[list[pa.Table], dict[int, str]]:
    """Batches of messages of a random history, late and doubled, and the rows in the end.

    A third of the way through, a snapshot is taken.
    """
    rng, lsn = random.Random(seed), 1000
    rows: dict[int, str] = {}
    messages: list[Any] = []
    for number in range(300):
        lsn += rng.randrange(1, 9)
        if number == 100:
            for key, name in rows.items():
                messages.append(postgres("r", lsn, after=row(key, name), snapshot="true"))
            continue
        key, name = rng.randrange(20), f"{number}"
        if key not in rows:
            messages.append(postgres("c", lsn, after=row(key, name)))
            rows[key] = name
        elif rng.random() < 0.3:
            messages += [postgres("d", lsn, before=row(key, None)), None]
            del rows[key]
        elif rng.random() < 0.3 and (new := rng.randrange(20)) not in rows:
            messages.append(postgres("u", lsn, row(key, None), row(new, name)))
            del rows[key]
            rows[new] = name
        else:
            messages.append(postgres("u", lsn, None, row(key, name)))
            rows[key] = name
    doubled = [one for one in messages if rng.random() < 0.1]
    late = [*messages, *doubled]
    for place in range(len(late)):
        if rng.random() < 0.2:
            other = rng.randrange(len(late))
            late[place], late[other] = late[other], late[place]
    step = len(late) // 5 + 1
    return [from_kafka(texts(late[first : first + step])) for first in range(0, len(late), step)], rows


@pytest.mark.parametrize("seed", range(2))
def test_a_random_history_ends_as_the_rows_of_the_source(seed: int, tmp_path: Path) -> None:
    """Late messages lose against newer ones. DuckDB reads the table."""
    batches, expected = random_batches(seed)
    lake, query = lake_and_query(tmp_path, lateRows="ignore")
    with open_store_in_memory() as store:
        for number, rows in enumerate(batches):
            half = len(rows) // 2
            query.run(store, query.batch(number), rows.slice(0, half), rows.slice(half))
    assert lake.rows("id, name") == sorted(expected.items())
    assert set(lake.schema().names) == {*ROW.names, "_change_position", "_change_sequence"}


def test_messages_that_cannot_be_decoded_become_dead_letters(tmp_path: Path) -> None:
    lake, query = lake_and_query(tmp_path, badRows="deadLetter", deadLetter=str(tmp_path / "refused"))
    values = texts([postgres("c", n, after=row(n)) for n in range(50)])
    values[7], values[30] = b"{", texts([postgres("t", 1)])[0]
    with open_store_in_memory() as store:
        manifest = query.build(store, query.batch(0), from_kafka(values))
        assert len(manifest.dead_letters) == 2
        assert "offset 107" in manifest.dead_letters[0].message
        query.target().commit(manifest)
    assert len(lake.rows("id, name")) == 48


def test_columns_of_a_row_may_be_named_as_those_of_kafka() -> None:
    """In a query that has no other columns of Kafka."""
    names = ("key", "value", "timestamp", "offset")
    feed = pa.table(
        {
            "id": [1],
            **{name: [5] for name in names},
            "_change_type": ["insert"],
            "_commit_version": [3],
        }
    )
    assert decoded(feed, changes="delta-cdf").schema.names[:5] == ["id", *names]
    flat = feed.drop_columns(["_commit_version"]).rename_columns(["id", *names, "__deleted"])
    flat = flat.set_column(5, "__deleted", pa.array(["false"])).append_column("__lsn", pa.array([7]))
    batch = decoded(flat)
    assert (batch.schema.names[:5], batch.column("_change_position").to_pylist()) == (["id", *names], [7])
    value = {"id": 1, "key": "k", "timestamp": "t", "value": "v"}
    rows = from_kafka(texts([postgres("c", 9, after=value)]))
    columns = "id BIGINT, key STRING, timestamp STRING, value STRING"
    batch = decoded(rows, valueColumns=columns, orderBy="timestamp")
    assert batch.slice(0, 1).select(["key", "timestamp", "value"]).to_pylist() == [
        {"key": "k", "timestamp": "t", "value": "v"}
    ]
    with pytest.raises(ConfigurationError, match="both have a column id"):
        decoded(rows.append_column("id", pa.array([1])), valueColumns=columns)


def test_flat_rows_beside_columns_of_kafka() -> None:
    """A tombstone has no field of the row."""
    flat = flat_columns(MESSAGES[:1])
    rows = pa.concat_tables([flat, pa.table([pa.nulls(1, f.type) for f in flat.schema], schema=flat.schema)])
    for name, column in (("topic", ["t", "t"]), ("partition", [0, 0]), ("offset", [4, 5])):
        rows = rows.append_column(name, pa.array(column))
    batch = decoded(rows)
    assert (batch.num_rows, batch.schema.names[:4]) == (1, ROW.names)


def test_other_columns_of_the_query_go_into_the_table(tmp_path: Path) -> None:
    """Those of Kafka do not, unless the order needs them."""
    lake, query = lake_and_query(tmp_path, orderBy="offset", lateRows="ignore", dropColumns="amount, topic")
    rows = from_kafka(texts(MESSAGES))
    rows = rows.append_column("loaded", pa.array([len(MESSAGES)] * len(MESSAGES)))
    with open_store_in_memory() as store:
        query.run(store, query.batch(0), rows)
    assert set(lake.schema().names) == {"id", "name", "at", "loaded", "offset"}
    assert lake.rows('id, name, loaded, "offset"') == [(3, "Ann", 6, 102), (4, None, 6, 105)]
