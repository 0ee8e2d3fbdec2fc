"""Events of orders in Avro, in the wire format of schema registries: what `make demo-kafka` sends to Kafka.

    python notebooks/order_events.py <brokers> <topic> <first event> <end> <schema> <orders> <events a second>

A value is a zero byte, the id of the schema (4 bytes), and the record. The second schema has one more field.
All values follow from the number of the event, so that a database can compute what a table must have.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import KafkaException, Producer

BEGIN = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()) * 1_000_000
STATUSES = ("created", "paid", "shipped", "delivered", "cancelled")
CHANNELS = ("web", "app", "shop")
DELIVERY_S_MAX = 300
"""Longer than a broker needs to start again."""


def schema(schema_id: int) -> dict[str, Any]:
    fields: list[dict[str, Any]] = [
        {"name": "event_id", "type": "long"},
        {"name": "order_id", "type": "long"},
        {"name": "status", "type": "string"},
        {"name": "cents", "type": "long"},
        {"name": "sent_at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "channel", "type": ["null", "string"], "default": None},
    ]
    kept = fields if schema_id > 1 else fields[:-1]
    return {"type": "record", "name": "OrderEvent", "namespace": "shop", "fields": kept}


def write_schema(folder: Path, schema_id: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{schema_id}.avsc").write_text(json.dumps(schema(schema_id), indent=2))


def event(number: int, orders: int) -> dict[str, Any]:
    """Return an event. Each order gets one event in turn."""
    order = number * 7919 % orders
    return {
        "event_id": number,
        "order_id": order,
        "status": STATUSES[(number // orders + order) % len(STATUSES)],
        "cents": number * 2_654_435_761 % 100_000,
        "sent_at": BEGIN + number * 1_000_000,
        "channel": CHANNELS[number % len(CHANNELS)],
    }


def parsed(schema_id: int) -> Any:
    """Return the schema as `encoded` takes it."""
    return fastavro.parse_schema(schema(schema_id))


def encoded(record: dict[str, Any], schema_id: int, parsed_schema: Any) -> bytes:
    """Return the value of a message."""
    buffer = io.BytesIO(b"\0" + struct.pack(">I", schema_id))
    buffer.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(buffer, parsed_schema, record)
    return buffer.getvalue()


def events_sql(count: int, orders: int, first_with_channel: int) -> str:
    """Return the query with which DuckDB computes all events. `sent_at` is in microseconds."""
    order = f"(i * 7919 % {orders})"
    statuses, channels = (f"[{', '.join(map(repr, names))}]" for names in (STATUSES, CHANNELS))
    return f"""
        SELECT i AS event_id, {order} AS order_id,
            {statuses}[1 + (i // {orders} + {order}) % {len(STATUSES)}] AS status,
            i * 2654435761 % 100000 AS cents, {BEGIN} + i * 1000000 AS sent_at,
            CASE WHEN i >= {first_with_channel} THEN {channels}[1 + i % {len(CHANNELS)}] END AS channel
        FROM range({count}) AS numbers(i)"""


def produce(brokers: str, topic: str, numbers: range, schema_id: int, orders: int, rate: float) -> None:
    """Send the events once each, also if brokers are killed: the producer is idempotent and tries again.

    Args:
        rate: events in a second, at most
    """
    written = parsed(schema_id)
    settings: dict[str, Any] = {
        "bootstrap.servers": brokers,
        "enable.idempotence": True,
        "compression.type": "zstd",
        "linger.ms": 20,
        "message.timeout.ms": DELIVERY_S_MAX * 1000,
        "log_level": 0,
    }
    errors: list[str] = []

    def acknowledged(error: object, _: object) -> None:
        if error is not None:
            errors.append(str(error))

    producer, started = Producer(settings), time.monotonic()
    for number in numbers:
        if number % 1000 == 0:
            time.sleep(max(0.0, started + (number - numbers.start) / rate - time.monotonic()))
        record = event(number, orders)
        value = encoded(record, schema_id, written)
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    str(record["order_id"]).encode(),
                    on_delivery=acknowledged,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if errors:
            raise KafkaException(errors[0])
    left = producer.flush(DELIVERY_S_MAX)
    if left or errors:
        raise KafkaException(errors[0] if errors else f"{left} events were not acknowledged")


if __name__ == "__main__":
    brokers, topic, *others = sys.argv[1:]
    first, end, schema_id, orders, rate = map(int, others)
    started = time.monotonic()
    produce(brokers, topic, range(first, end), schema_id, orders, rate)
    print(f"{end - first:,} events in {time.monotonic() - started:.1f} s", flush=True)
