"""The forms of messages of sources of changes: where the columns of a query have the rows. Driver only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...committers.errors import ConfigurationError, SchemaMismatchError
from ...writers.changes.envelopes.avro_values import (
    AvroReader,
    AvroSchema,
    OneSchema,
    RegistrySchemas,
    SchemaResolver,
)
from ...writers.changes.envelopes.conversion import Logical
from ...writers.changes.envelopes.debezium import DELETED as FLAT_DELETED
from ...writers.changes.envelopes.debezium import FLAT_PREFIXES, Debezium
from ...writers.changes.envelopes.decoder import (
    KAFKA_COLUMNS,
    KEY,
    OFFSET,
    PARTITION,
    TOPIC,
    VALUE,
    ValueReader,
)
from ...writers.changes.envelopes.dms import BEFORE_PREFIX, OPERATION, Dms
from ...writers.changes.envelopes.feeds import DeltaFeed, IcebergChangelog
from ...writers.changes.envelopes.formats import Format
from ...writers.changes.envelopes.json_values import JsonReader
from ...writers.changes.envelopes.maxwell import Maxwell
from ...writers.parquet.columns import is_binary, is_string
from .modes import FEEDS, Envelope
from .value_columns import logical_types, value_columns

FORMATS_BY_NAME: Mapping[str, Format] = {
    one.name: one for one in (Debezium(), Maxwell(), Dms(), DeltaFeed(), IcebergChangelog())
}
_FIELDS: Mapping[str, Sequence[str]] = {
    "debezium": (
        "before",
        "after",
        "op",
        "source",
        "ts_ms",
        "ts_us",
        "ts_ns",
        "transaction",
        "status",
        "ddl",
    ),
    "maxwell": (
        *("database", "table", "type", "ts", "xid", "xoffset", "commit", "position", "gtid", "server_id"),
        *("thread_id", "schema_id", "primary_key", "primary_key_columns", "data", "old", "def", "sql"),
    ),
    "dms": ("data", "metadata", "before-image"),
}
"""Fields of messages at the top, as far as they are known. Others are columns that the table gets."""
_SOURCE_ORDER = [path[-1] for path in Debezium.metadata if path[0] == "source" and path[-1] != "snapshot"]
_NEEDED: Mapping[str, Sequence[str]] = {"debezium": ("op",), "maxwell": ("type",), "dms": ("metadata",)}


@dataclass(frozen=True, slots=True)
class MessageForm:
    """Where the rows are in the columns of the query."""

    columns: pa.Schema
    """The columns of the table that are in the messages."""
    consumed: frozenset[str]
    """Columns of the query that are messages, or fields of them."""
    kafka: frozenset[str]
    """Columns of the query that Spark's Kafka source has beside the message."""
    is_flat: bool = False
    reader: ValueReader | None = None
    names: Mapping[str, str] | None = None
    given: Mapping[str, Logical] | None = None


def form_of(
    rows: pa.Schema, envelope: Envelope, keys: Sequence[str], schema_of: SchemaResolver | None
) -> MessageForm:
    """
    Raises:
        ConfigurationError: the columns of the query are none of the forms.
    """
    names, name = set(rows.names), envelope.format
    if envelope.value_format is not None:
        return _value_form(rows, envelope, keys, schema_of)
    if name in FEEDS:
        return _feed_form(rows, name)
    if name == "debezium" and FLAT_DELETED in names:
        known = {prefix + one for prefix in FLAT_PREFIXES for one in _flat_names()}
        return _flat_form(rows, names & (known | {FLAT_DELETED, "__op"}), _kafka_beside_rows(names))
    if name == "dms" and OPERATION in names:
        before = {BEFORE_PREFIX + one for one in names}
        return _flat_form(rows, {OPERATION} | (names & before), _kafka_beside_rows(names))
    after = FORMATS_BY_NAME[name].after[0]
    if after in names and names.issuperset(_NEEDED[name]):
        if name == "debezium" and names.isdisjoint(("before", KEY)):
            raise ConfigurationError(
                "changes=debezium: messages that delete have their key in before, or in the key of Kafka. "
                "The query has neither a column before nor key. Nothing was written."
            )
        return _struct_form(rows, envelope, after)
    if VALUE in names:
        return _value_form(rows, envelope, keys, schema_of)
    raise _no_form(rows, name)


def _flat_names() -> Sequence[str]:
    others = (
        "table",
        "db",
        "schema",
        "connector",
        "name",
        "version",
        "txId",
        "xmin",
        "sequence",
        "op",
        "ts_us",
    )
    return [*others, "ts_ns", *(path[-1] for path in Debezium.metadata if path[0] == "source")]


def _no_form(rows: pa.Schema, name: str) -> ConfigurationError:
    forms = {
        "debezium": "op, before, after and source; or __deleted beside the columns of the row, which the "
        "transform ExtractNewRecordState adds with delete.tombstone.handling.mode=rewrite; or value",
        "maxwell": "type, data and old; or value",
        "dms": "Op beside the columns of the row; or data and metadata; or value",
    }
    hint = ""
    if "payload" in rows.names:
        hint = " Select the fields of the payload: payload.*."
    elif name == "debezium" and "__op" in rows.names:
        hint = (
            " Without __deleted, deletions are tombstones, which cannot be told from those that follow one."
        )
    return ConfigurationError(
        f"changes={name} needs the columns {forms[name]} (a message as Kafka has it). The query has "
        f"{', '.join(rows.names)}.{hint} Nothing was written."
    )


def _feed_form(rows: pa.Schema, name: str) -> MessageForm:
    known = (DeltaFeed if name == "delta-cdf" else IcebergChangelog).columns
    if missing := [column for column in known[:2] if column not in rows.names]:
        raise ConfigurationError(
            f"changes={name} needs the columns {', '.join(known)}. The query has no {', '.join(missing)}. "
            "Nothing was written."
        )
    return _flat_form(rows, set(known) & set(rows.names), frozenset())


def _flat_form(rows: pa.Schema, metadata: set[str], kafka: frozenset[str]) -> MessageForm:
    columns = [one for one in rows if one.name not in metadata and one.name not in kafka]
    fields = metadata.union(one.name for one in columns)
    return MessageForm(
        pa.schema(columns), frozenset(fields), kafka, is_flat=True, names={name: name for name in fields}
    )


def _kafka(rows: pa.Schema) -> frozenset[str]:
    return frozenset(KAFKA_COLUMNS).intersection(rows.names)


def _kafka_beside_rows(names: set[str]) -> frozenset[str]:
    """Return the columns of Kafka in a query that also has those of the row: none, if these could be some."""
    is_from_kafka = names.issuperset((TOPIC, PARTITION, OFFSET))
    return frozenset(KAFKA_COLUMNS) & names if is_from_kafka else frozenset()


def _struct_form(rows: pa.Schema, envelope: Envelope, after: str) -> MessageForm:
    name = envelope.format
    kind = rows.field(after).type
    given: Mapping[str, Logical] = {}
    if pa.types.is_struct(kind):
        if envelope.value_columns:
            raise ConfigurationError(
                f"valueColumns: the column {after} is a struct, whose fields are the columns of the table. "
                "Remove the option, or set valueFormat to read the messages from the column value. Nothing "
                "was written."
            )
        columns = pa.schema([pa.field(one.name, one.type) for one in kind])
    elif is_string(kind):
        declared = _declared(envelope, f"the column {after} is a text")
        columns, given = _plain(declared), logical_types(declared)
    else:
        raise SchemaMismatchError(
            f"changes={name}: the column {after} is {kind}, and must be a struct with the columns of the "
            "row, or a text of JSON. Nothing was written."
        )
    consumed = frozenset(set(_FIELDS[name]) & set(rows.names))
    return MessageForm(columns, consumed, _kafka(rows), names={one: one for one in consumed}, given=given)


def _value_form(
    rows: pa.Schema, envelope: Envelope, keys: Sequence[str], schema_of: SchemaResolver | None
) -> MessageForm:
    name, form = envelope.format, envelope.value_format or "json"
    if VALUE not in rows.names:
        raise ConfigurationError(
            f"valueFormat={form} needs a column value, with the messages. The query has "
            f"{', '.join(rows.names)}. Nothing was written."
        )
    kind = rows.field(VALUE).type
    if not (is_binary(kind) or (is_string(kind) and form == "json")):
        raise SchemaMismatchError(
            f"valueFormat={form}: the column value is {kind}, and must be binary"
            f"{' or a string' if form == 'json' else ''}. Nothing was written."
        )
    declared = _declared(envelope, "the messages are in the column value")
    columns = _plain(declared)
    lower = {one.lower(): one for one in columns.names}
    own_keys = tuple([lower[key.lower()] for key in keys if key.lower() in lower])
    reader: ValueReader
    if form == "json":
        reader = JsonReader(FORMATS_BY_NAME[name], columns, own_keys)
    else:
        reader = AvroReader(
            FORMATS_BY_NAME[name], columns, schema_of or _avro_schema(envelope), form == "avro-confluent"
        )
    return MessageForm(
        columns, frozenset({VALUE}), _kafka(rows), reader=reader, given=logical_types(declared)
    )


def _declared(envelope: Envelope, reason: str) -> pa.Schema:
    if not envelope.value_columns:
        raise ConfigurationError(
            f"changes={envelope.format} needs valueColumns, since {reason}: the columns of the table, such "
            "as id BIGINT, name STRING, amount DECIMAL(10,2). Nothing was written."
        )
    return value_columns(envelope.value_columns)


def _plain(declared: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(one.name, one.type) for one in declared])


_ANY_SCHEMA = '{"type": "record", "name": "Row", "fields": []}'


def _avro_schema(envelope: Envelope) -> SchemaResolver:
    """
    Raises:
        ConfigurationError: there is no schema, or it is none, or fastavro is missing.
    """
    if not envelope.avro_schema and envelope.registry is None:
        is_in_registry = envelope.value_format == "avro-confluent"
        or_registry = ", or registry.url: the Schema Registry that has it" if is_in_registry else ""
        raise ConfigurationError(
            f"valueFormat={envelope.value_format} needs avroSchema: the schema that the messages were "
            f"written with, as JSON{or_registry}. Nothing was written."
        )
    try:
        AvroSchema.parse(envelope.avro_schema or _ANY_SCHEMA)
    except SchemaMismatchError as error:
        raise ConfigurationError(f"{error} Nothing was written.") from error
    except ModuleNotFoundError:
        raise ConfigurationError(
            "valueFormat=avro needs fastavro, on the driver and the executors: pip install 'penstock[avro]'."
        ) from None
    return (
        OneSchema(envelope.avro_schema) if envelope.registry is None else RegistrySchemas(envelope.registry)
    )


POSITIONS: Mapping[str, str] = {
    "debezium": "source or ts_ms (with ExtractNewRecordState: add.fields=op,lsn,source.ts_ms)",
    "maxwell": "position",
    "dms": "metadata",
}
"""Columns that order the messages of a format."""


def may_have_position(rows: pa.Schema, name: str) -> bool:
    """Return False if no column of messages of a format tells their order."""
    known = {"source", "ts_ms", *(prefix + one for prefix in FLAT_PREFIXES for one in _SOURCE_ORDER)}
    names = {"debezium": known, "maxwell": {"position"}, "dms": {"metadata"}}.get(name, set(rows.names))
    return not names.isdisjoint(rows.names)
