"""Values in Avro and Protobuf with a Schema Registry that runs, into Kafka and out of it."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from servers.kafka import KafkaServer
from servers.schema_registry import SchemaRegistryServer
from tests.support.debezium_messages import AVRO_SCHEMA, from_kafka, in_avro, postgres, row
from tests.support.kafka_topic import KafkaHarness
from tests.support.lakes import DeltaLake

from penstock import ConfigurationError
from penstock.committers.store.sql import SqlManifestStore
from penstock.datasource.stored.table_access import TableAccess
from penstock.testing.conformance.deliveries import deliver
from penstock.testing.conformance.query import Query
from penstock.writers.kafka import protobuf
from penstock.writers.kafka.schemas import _latest

pytestmark = pytest.mark.slow


@pytest.fixture
def harness(tmp_path: Path, kafka_process: KafkaServer) -> KafkaHarness:
    harness = KafkaHarness(tmp_path, kafka_process)
    kafka_process.create(harness.topic)
    return harness


@pytest.fixture
def query(
    harness: KafkaHarness, store: SqlManifestStore, schema_registry_process: SchemaRegistryServer
) -> Query:
    of_registry = {"registry.url": schema_registry_process.url}
    return Query(harness, store=store).with_options(valueFormat="avro", keyColumns="id", **of_registry)


def read_avro(registry: SchemaRegistryServer, values: list[bytes | None]) -> list[Any]:
    """Return the records, each read with the schema of its id."""
    found: list[Any] = []
    for value in values:
        if value is None:
            found.append(None)
            continue
        assert value[0] == 0
        text = registry.ask(f"/schemas/ids/{int.from_bytes(value[1:5], 'big')}")["schema"]
        stream = io.BytesIO(value[5:])
        found.append(fastavro.schemaless_reader(stream, fastavro.parse_schema(json.loads(text)), None))
    return found


def values_of(harness: KafkaHarness) -> list[bytes | None]:
    records = harness._server.records(harness.topic)
    return [one.value() for one in sorted(records, key=lambda one: (int(one.key()), one.timestamp()))]


def test_rows_are_avro_with_a_schema_that_evolves(
    query: Query,
    store: SqlManifestStore,
    harness: KafkaHarness,
    schema_registry_process: SchemaRegistryServer,
) -> None:
    """A schema that is not compatible is refused before any row is written."""
    subject = f"{harness.topic}-value"
    first = pa.table({"id": [1, 2], "name": ["a", None]})
    query.run(store, query.batch(0), first)
    schema_registry_process.set_compatibility(subject, "BACKWARD")
    second = pa.table({"id": [3], "city": ["ulm"], "name": ["c"]})
    query.run(store, query.batch(1), second)
    files = set(harness.uncommitted())
    for wrong in (pa.table({"id": ["x"]}), pa.table({"id": [4], "name": [1.5]})):
        with pytest.raises(ConfigurationError, match=rf"refuses the schema for the subject {subject}"):
            query.plan(store, query.batch(2), wrong.schema)

    assert read_avro(schema_registry_process, values_of(harness)) == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": None},
        {"id": 3, "city": "ulm", "name": "c"},
    ]
    assert schema_registry_process.ask(f"/subjects/{subject}/versions") == [1, 2]
    assert set(harness.uncommitted()) == files


def test_rows_are_messages_of_protobuf_whose_fields_keep_their_numbers(
    query: Query,
    store: SqlManifestStore,
    harness: KafkaHarness,
    schema_registry_process: SchemaRegistryServer,
) -> None:
    query = query.with_options(valueFormat="protobuf", recordName="shop.Order")
    rows = pa.table({"id": [1], "name": ["a"]}), pa.table({"id": [2], "city": ["ulm"], "name": ["b"]})
    for batch_id, of_batch in enumerate(rows):
        _latest.clear()
        query.run(store, query.batch(batch_id), of_batch)

    first, second = values_of(harness)
    ids = [int.from_bytes(value[1:5], "big") for value in (first, second) if value]
    texts = [schema_registry_process.ask(f"/schemas/ids/{one}")["schema"] for one in ids]
    message = protobuf.encoder(texts[1], rows[1].schema.remove_metadata(), "shop.Order").message
    assert "string name = 2;" in texts[0]
    for value, name in ((first, "a"), (second, "b")):
        assert value is not None
        assert value[5] == 0
        assert message.FromString(value[6:]).name == name


def test_the_newest_schema_of_a_subject(
    query: Query,
    store: SqlManifestStore,
    harness: KafkaHarness,
    schema_registry_process: SchemaRegistryServer,
) -> None:
    """It is not registered again, and rows that it does not hold are bad rows."""
    record = f"R{uuid.uuid4().hex}"
    query = query.with_options(valueSchema="latest", subjectNameStrategy="record", recordName=record)
    with pytest.raises(ConfigurationError, match=f"no schema for the subject {record}"):
        query.plan(store, query.batch(0))
    fields = [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "default": "A"},
    ]
    text = json.dumps({"type": "record", "name": record, "fields": fields})
    schema_registry_process.ask(f"/subjects/{record}/versions", {"schema": text}, "POST")
    query = query.with_options(badRows="drop")
    query.run(store, query.batch(0), pa.table({"id": [1, 2, None], "kind": ["B", "C", "A"]}))
    query.run(store, query.batch(1), pa.table({"id": [4]}))

    assert read_avro(schema_registry_process, values_of(harness)) == [
        {"id": 1, "kind": "B"},
        {"id": 4, "kind": "A"},
    ]
    assert schema_registry_process.ask(f"/subjects/{record}/versions") == [1]
    other = query.with_options(valueFormat="protobuf")
    with pytest.raises(ConfigurationError, match=f"subject {record} is AVRO, .*valueFormat=protobuf"):
        other.plan(store, other.batch(2))


@pytest.mark.parametrize(("strategy", "subject"), [("record", "{}"), ("topicRecord", "{topic}-{}")])
def test_a_schema_that_may_not_be_registered_must_be_there(
    query: Query,
    store: SqlManifestStore,
    harness: KafkaHarness,
    schema_registry_process: SchemaRegistryServer,
    strategy: str,
    subject: str,
) -> None:
    record = f"shop.R{uuid.uuid4().hex}"
    subject = subject.format(record, topic=harness.topic)
    query = query.with_options(recordName=record, subjectNameStrategy=strategy)
    reading = query.with_options(registerSchemas="false")
    with pytest.raises(ConfigurationError, match=rf"subject {subject}, .* Register it:\n"):
        reading.plan(store, reading.batch(0))
    query.plan(store, query.batch(0))
    reading.run(store, reading.batch(0), pa.table({"id": [1]}))

    assert read_avro(schema_registry_process, values_of(harness)) == [{"id": 1}]


def test_a_delivery_gets_the_registry_from_its_own_options(
    query: Query,
    store: SqlManifestStore,
    harness: KafkaHarness,
    schema_registry_process: SchemaRegistryServer,
) -> None:
    """It is not stored. Rows that delete are tombstones."""
    query = query.with_options(delivery="decoupled", deleteWhen="id = 2")
    query.run(store, query.batch(0), pa.table({"id": [1, 2]}))
    failed = deliver(store)
    assert failed is not None
    assert "needs registry.url" in str(failed.failure)
    (stream,) = store.streams()
    store.deliveries.retry(stream.key, "ann", "with the registry")
    registry = {"bootstrapServers": harness._server.servers, "registry.url": schema_registry_process.url}
    deliver(store, TableAccess(registry, {}))
    assert read_avro(schema_registry_process, values_of(harness)) == [{"id": 1}, None]


def test_changes_are_read_with_the_schemas_of_their_ids(
    store: SqlManifestStore, schema_registry_process: SchemaRegistryServer, tmp_path: Path
) -> None:
    """Messages of Debezium in Avro, before and after a column is added, become rows of a table."""
    registry = schema_registry_process
    subject = f"customers-{uuid.uuid4().hex}-value"

    def registered(text: str) -> bytes:
        found = registry.ask(f"/subjects/{subject}/versions", {"schema": text}, "POST")
        return b"\0" + int(found["id"]).to_bytes(4, "big")

    wider = json.loads(AVRO_SCHEMA)
    wider["fields"][0]["type"][1]["fields"].append(
        {"name": "city", "type": ["null", "string"], "default": None}
    )
    first = in_avro([postgres("c", 100, after=row(1, "Ann", 100))], registered(AVRO_SCHEMA))
    message = postgres("c", 110, after=row(2, "Bea", 200))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(wider), _with_city(message))
    second = [registered(json.dumps(wider)) + stream.getvalue()]

    lake = DeltaLake(tmp_path / "table")
    options = {"writeMode": "upsert", "keys": "id", "changes": "debezium", "valueFormat": "avro-confluent"}
    query = Query(lake, store=store).with_options(
        **options,
        valueColumns="id BIGINT, name STRING, city STRING",
        **{"registry.url": registry.url},
    )
    query.run(store, query.batch(0), from_kafka([*first, *second]))

    assert lake.rows("id, name, city") == [(1, "Ann", None), (2, "Bea", "ulm")]


def _with_city(message: Mapping[str, Any]) -> dict[str, Any]:
    after = {"id": message["after"]["id"], "name": message["after"]["name"], "amount": None, "at": None}
    return {**message, "before": None, "after": {**after, "city": "ulm"}}
