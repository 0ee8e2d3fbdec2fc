"""Messages as Debezium writes them: the fields and forms of its documentation, with other values."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

KAFKA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
"""The columns of Spark's Kafka source."""
COLUMNS = "id BIGINT, name STRING, amount DECIMAL(10,2), at TIMESTAMP"
ROW_SCHEMA = [
    {"type": "int64", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "name"},
    {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
        "field": "amount",
    },
    {
        "type": "int64",
        "optional": True,
        "name": "io.debezium.time.MicroTimestamp",
        "version": 1,
        "field": "at",
    },
]
Message = Mapping[str, Any]


def unscaled(number: int) -> str:
    """Return a decimal as the handling mode `precise` writes it."""
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def row(key: int, name: str | None = "x", cents: int | None = None, micros: int | None = None) -> Message:
    amount = None if cents is None else unscaled(cents)
    return {"id": key, "name": name, "amount": amount, "at": micros}


def postgres(
    op: str,
    lsn: int,
    before: Message | None = None,
    after: Message | None = None,
    snapshot: object = "false",
    seconds: int = 1_690_000_000,
) -> dict[str, Any]:
    source = {
        "version": "3.1.0.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": seconds * 1000,
        "snapshot": snapshot,
        "db": "orders",
        "sequence": json.dumps([str(lsn - 8), str(lsn)]),
        "ts_us": seconds * 1_000_000,
        "ts_ns": seconds * 1_000_000_000,
        "schema": "public",
        "table": "customers",
        "txId": 771,
        "lsn": lsn,
        "xmin": None,
    }
    return _envelope(op, before, after, source, seconds)


def mysql(
    op: str,
    file: str,
    pos: int,
    number: int = 0,
    before: Message | None = None,
    after: Message | None = None,
    snapshot: object = "false",
) -> dict[str, Any]:
    seconds = 1_690_000_000
    source = {
        "version": "3.1.0.Final",
        "connector": "mysql",
        "name": "shop",
        "ts_ms": seconds * 1000,
        "snapshot": snapshot,
        "db": "orders",
        "sequence": None,
        "table": "customers",
        "server_id": 223344,
        "gtid": None,
        "file": file,
        "pos": pos,
        "row": number,
        "thread": 8,
        "query": None,
    }
    return _envelope(op, before, after, source, seconds)


def mongodb(
    op: str, seconds: int, order: int, after: Mapping[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """The document is a text of extended JSON; a message that deletes has none."""
    source = {
        "version": "3.1.0.Final",
        "connector": "mongodb",
        "name": "shop",
        "ts_ms": seconds * 1000,
        "snapshot": "false",
        "db": "orders",
        "sequence": None,
        "rs": "rs0",
        "collection": "customers",
        "ord": order,
        "lsid": None,
        "txnNumber": None,
        "wallTime": None,
    }
    document = None if after is None else json.dumps(after)
    return {**_envelope(op, None, document, source, seconds), "updateDescription": None, **more}


def _envelope(op: str, before: Any, after: Any, source: Message, seconds: int) -> dict[str, Any]:
    return {
        "before": before,
        "after": after,
        "source": source,
        "op": op,
        "ts_ms": seconds * 1000 + 41,
        "ts_us": seconds * 1_000_000 + 41_123,
        "ts_ns": seconds * 1_000_000_000 + 41_123_456,
        "transaction": None,
    }


def flattened(message: Message) -> dict[str, Any]:
    """The message after ExtractNewRecordState with `delete.tombstone.handling.mode=rewrite` and
    `add.fields=op,lsn,source.ts_ms,source.snapshot`.
    """
    columns = message["after"] if message["after"] is not None else message["before"]
    source = message["source"]
    return {
        **columns,
        "__deleted": "true" if message["op"] == "d" else "false",
        "__op": message["op"],
        "__lsn": source["lsn"],
        "__source_ts_ms": source["ts_ms"],
        "__source_snapshot": source["snapshot"],
    }


def with_schema(message: Message | None, is_flat: bool = False) -> dict[str, Any]:
    """The message as Kafka Connect's JSON converter writes it with `schemas.enable`."""
    if is_flat:
        fields: Sequence[Mapping[str, Any]] = ROW_SCHEMA
    else:
        rows: list[Mapping[str, Any]] = [
            {"type": "struct", "fields": ROW_SCHEMA, "optional": True, "name": "shop.Value", "field": side}
            for side in ("before", "after")
        ]
        fields = [*rows, {"type": "string", "optional": False, "field": "op"}]
    schema = {"type": "struct", "fields": fields, "optional": False, "name": "shop.Envelope"}
    return {"schema": schema, "payload": message}


def texts(messages: Sequence[Message | None]) -> list[bytes | None]:
    """As the converter writes them; None for a tombstone."""
    return [
        None if message is None else json.dumps(message, separators=(",", ":")).encode()
        for message in messages
    ]


def from_kafka(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> pa.Table:
    """Rows of Spark's Kafka source, from offset 100."""
    count = len(values)
    columns: list[Sequence[Any]] = [
        keys if keys is not None else [None] * count,
        values,
        ["shop.public.customers"] * count,
        [0] * count,
        range(100, 100 + count),
        [None] * count,
        [0] * count,
    ]
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, KAFKA, strict=True)]
    return pa.table(arrays, schema=KAFKA)


def as_columns(messages: Sequence[Message | None], fields: Sequence[pa.Field]) -> pa.Table:
    """Rows of a query that has parsed messages with `from_json`, and selects their fields.

    Args:
        fields: of the rows
    """
    place = pa.struct([("lsn", pa.int64()), ("snapshot", pa.string()), ("ts_ms", pa.int64())])
    image = pa.struct(list(fields))
    schema = pa.schema(
        [("before", image), ("after", image), ("source", place), ("op", pa.string()), ("ts_ms", pa.int64())]
    )
    columns = [
        pa.array([None if one is None else one.get(field.name) for one in messages], field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


AVRO_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.customers",
        "fields": [
            {
                "name": "before",
                "default": None,
                "type": [
                    "null",
                    {
                        "type": "record",
                        "name": "Value",
                        "fields": [
                            {"name": "id", "type": "long"},
                            {"name": "name", "type": ["null", "string"], "default": None},
                            {
                                "name": "amount",
                                "default": None,
                                "type": [
                                    "null",
                                    {
                                        "type": "bytes",
                                        "scale": 2,
                                        "precision": 10,
                                        "connect.version": 1,
                                        "connect.name": "org.apache.kafka.connect.data.Decimal",
                                        "logicalType": "decimal",
                                    },
                                ],
                            },
                            {
                                "name": "at",
                                "default": None,
                                "type": [
                                    "null",
                                    {
                                        "type": "long",
                                        "connect.version": 1,
                                        "connect.name": "io.debezium.time.MicroTimestamp",
                                    },
                                ],
                            },
                        ],
                    },
                ],
            },
            {"name": "after", "type": ["null", "Value"], "default": None},
            {
                "name": "source",
                "type": {
                    "type": "record",
                    "name": "Source",
                    "namespace": "io.debezium.connector.postgresql",
                    "fields": [
                        {"name": "ts_ms", "type": "long"},
                        {"name": "snapshot", "type": ["string", "null"], "default": "false"},
                        {"name": "lsn", "type": ["null", "long"], "default": None},
                    ],
                },
            },
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
    }
)
"""Of the messages of `postgres`, as Confluent's converter registers it."""


def in_avro(messages: Sequence[Message | None], header: bytes = b"") -> list[bytes | None]:
    """
    Args:
        header: before each message
    """
    import io

    import fastavro

    schema = fastavro.parse_schema(json.loads(AVRO_SCHEMA))
    values: list[bytes | None] = []
    for message in messages:
        if message is None:
            values.append(None)
            continue
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, _for_avro(message))
        values.append(header + stream.getvalue())
    return values


def _for_avro(message: Message) -> dict[str, Any]:
    from decimal import Decimal

    def image(given: Message | None) -> dict[str, Any] | None:
        if given is None:
            return None
        amount = given.get("amount")
        number = None if amount is None else int.from_bytes(base64.b64decode(amount), "big", signed=True)
        return {
            "id": given["id"],
            "name": given.get("name"),
            "amount": None if number is None else Decimal(number).scaleb(-2),
            "at": given.get("at"),
        }

    return {**message, "before": image(message["before"]), "after": image(message["after"])}
