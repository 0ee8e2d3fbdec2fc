"""Plans how the messages of a source of changes are decoded, from the columns of the query. Driver only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...committers.contract import Changes
from ...committers.errors import ConfigurationError, SchemaMismatchError
from ...writers.changes.envelopes.avro_values import AvroReader, AvroSchema, OneSchema, SchemaResolver
from ...writers.changes.envelopes.conversion import Logical
from ...writers.changes.envelopes.debezium import DELETED as FLAT_DELETED
from ...writers.changes.envelopes.debezium import FLAT_PREFIXES, Debezium
from ...writers.changes.envelopes.decoder import KAFKA_COLUMNS, OFFSET, VALUE, RowDecoder, ValueReader
from ...writers.changes.envelopes.dms import BEFORE_PREFIX, OPERATION, Dms
from ...writers.changes.envelopes.events import DELETED, POSITION, SEQUENCE, TIME, Target
from ...writers.changes.envelopes.feeds import DeltaFeed, IcebergChangelog
from ...writers.changes.envelopes.formats import Format
from ...writers.changes.envelopes.json_values import JsonReader
from ...writers.changes.envelopes.maxwell import Maxwell
from ...writers.parquet.columns import is_binary, is_string
from .modes import FEEDS, Envelope, EnvelopeChanges
from .value_columns import logical_types, value_columns

_FORMATS: Mapping[str, Format] = {
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
_NEEDED: Mapping[str, Sequence[str]] = {"debezium": ("op",), "maxwell": ("type",), "dms": ("metadata",)}


@dataclass(frozen=True, slots=True)
class _Form:
    """Where the rows are in the columns of the query."""

    columns: pa.Schema
    """The columns of the table that are in the messages."""
    consumed: frozenset[str]
    """Columns of the query that are messages, or fields of them."""
    is_flat: bool = False
    reader: ValueReader | None = None
    names: Mapping[str, str] | None = None
    given: Mapping[str, Logical] | None = None


def plan_envelope(
    rows: pa.Schema, changes: EnvelopeChanges, schema_of: SchemaResolver | None = None
) -> tuple[RowDecoder, Changes]:
    """Return what decodes the rows of the query, and the changes by the columns of the decoded rows.

    Args:
        rows: the columns of the query
        schema_of: returns the schema of a message with a schema id; None: the option `avroSchema` has it

    Raises:
        ConfigurationError: the query does not have the columns of the format, or an option is missing.
    """
    envelope = changes.envelope
    kind = _FORMATS[envelope.format]
    form = _form(rows, envelope, changes.keys, schema_of)
    lower = {name.lower(): name for name in form.columns.names}
    if missing := [name for name in changes.keys if name.lower() not in lower]:
        raise ConfigurationError(
            f"keys names {', '.join(map(repr, missing))}, and the rows of changes={envelope.format} have "
            f"only the columns {', '.join(form.columns.names)}. Nothing was written. Correct the option."
        )
    keys = tuple([lower[name.lower()] for name in changes.keys])
    ordering = {name.lower() for name in changes.order_by}
    passed = [
        column
        for column in rows
        if column.name not in form.consumed
        and (column.name not in KAFKA_COLUMNS or column.name.lower() in ordering)
    ]
    in_rows = {*form.columns.names, *(one.name for one in passed)}
    if reserved := [name for name in (*_OWN, TIME) if name in in_rows]:
        raise ConfigurationError(
            f"changes={envelope.format} adds a column {reserved[0]}, and the query has one. Rename it."
        )
    target = Target(form.columns, keys, pa.schema(passed), has_time=TIME in ordering)
    decoder = RowDecoder(kind, target, form.reader, form.is_flat, form.given or {}, form.names or {})
    return decoder, _changes_of(changes, target, rows, _default_order(rows, changes, form.is_flat))


_OWN = (DELETED, POSITION, SEQUENCE)


def are_decoded(rows: pa.Schema) -> bool:
    """Return True if these are the columns of rows that a `RowDecoder` has made."""
    return all(name in rows.names for name in _OWN)


def changes_of_decoded(rows: pa.Schema, changes: EnvelopeChanges) -> Changes:
    """Return the changes of rows that were decoded before they were stored.

    Args:
        rows: their columns
    """
    named = {name.lower(): name for name in rows.names}
    keys = tuple([named[name.lower()] for name in changes.keys])
    of_messages = (
        value_columns(changes.envelope.value_columns).names if changes.envelope.value_columns else ()
    )
    passed = [
        column
        for column in rows
        if column.name not in _OWN and column.name in KAFKA_COLUMNS and column.name not in of_messages
    ]
    own = (*_OWN, TIME)
    target = Target(
        pa.schema([column for column in rows if column.name not in own and column not in passed]),
        keys,
        pa.schema(passed),
        has_time=TIME in rows.names,
    )
    return _changes_of(changes, target, rows, _default_order(rows, changes, is_flat=False))


def _default_order(rows: pa.Schema, changes: EnvelopeChanges, is_flat: bool) -> tuple[str, ...]:
    name = changes.envelope.format
    if name in FEEDS:
        if name == "iceberg-changelog" and changes.late_rows == "ignore" and not changes.order_by:
            raise ConfigurationError(
                "changes=iceberg-changelog with lateRows=ignore needs orderBy: the ordinals of a changelog "
                "view count from 0 in each view, so they cannot be compared with those of earlier batches."
            )
        return (*changes.order_by, SEQUENCE) if changes.order_by else (POSITION, SEQUENCE)
    if changes.order_by:
        return changes.order_by
    if name == "dms" and is_flat and OFFSET not in rows.names:
        raise ConfigurationError(
            "changes=dms needs orderBy: columns that order the rows of a key, such as one that a "
            "transformation rule adds with $AR_H_CHANGE_SEQ. Rows with a column Op have no order of their "
            "own."
        )
    return POSITION, SEQUENCE


def _changes_of(
    changes: EnvelopeChanges, target: Target, rows: pa.Schema, order_by: tuple[str, ...]
) -> Changes:
    """Return changes without the envelope. The table gets no column of it, except to compare late rows."""
    decoded = {name.lower() for name in target.schema.names}
    in_query = {name.lower() for name in rows.names}
    dropped = [
        name for name in changes.drop_columns if name.lower() in decoded or name.lower() not in in_query
    ]
    needed = {name.lower() for name in order_by} if changes.late_rows == "ignore" else set()
    own = (*_OWN, *([TIME] if target.has_time else []))
    for name in (*own, *(name for name in target.passed.names if name in KAFKA_COLUMNS)):
        if name.lower() not in needed and name.lower() not in {one.lower() for one in dropped}:
            dropped.append(name)
    return changes.of_rows(
        keys=target.keys, order_by=order_by, delete_when=DELETED, drop_columns=tuple(dropped)
    )


# The forms of messages ------------------------------------------------------------------------------


def _form(
    rows: pa.Schema, envelope: Envelope, keys: Sequence[str], schema_of: SchemaResolver | None
) -> _Form:
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
        return _flat_form(rows, frozenset(names & (known | {FLAT_DELETED, "__op"})))
    if name == "dms" and OPERATION in names:
        before = {BEFORE_PREFIX + one for one in names}
        return _flat_form(rows, frozenset({OPERATION} | (names & before)))
    after = _FORMATS[name].after[0]
    if after in names and names.issuperset(_NEEDED[name]):
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


def _feed_form(rows: pa.Schema, name: str) -> _Form:
    known = (DeltaFeed if name == "delta-cdf" else IcebergChangelog).columns
    if missing := [column for column in known[:2] if column not in rows.names]:
        raise ConfigurationError(
            f"changes={name} needs the columns {', '.join(known)}. The query has no {', '.join(missing)}. "
            "Nothing was written."
        )
    return _flat_form(rows, frozenset(known) & set(rows.names))


def _flat_form(rows: pa.Schema, consumed: frozenset[str]) -> _Form:
    columns = [one for one in rows if one.name not in consumed and one.name not in KAFKA_COLUMNS]
    consumed = consumed.union(one.name for one in columns)
    return _Form(pa.schema(columns), consumed, is_flat=True, names={name: name for name in rows.names})


def _struct_form(rows: pa.Schema, envelope: Envelope, after: str) -> _Form:
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
    return _Form(columns, consumed, names={one: one for one in consumed}, given=given)


def _value_form(
    rows: pa.Schema, envelope: Envelope, keys: Sequence[str], schema_of: SchemaResolver | None
) -> _Form:
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
        reader = JsonReader(_FORMATS[name], columns, own_keys)
    else:
        reader = AvroReader(
            _FORMATS[name], columns, schema_of or _avro_schema(envelope), form == "avro-confluent"
        )
    return _Form(columns, frozenset({VALUE}), reader=reader, given=logical_types(declared))


def _declared(envelope: Envelope, reason: str) -> pa.Schema:
    if not envelope.value_columns:
        raise ConfigurationError(
            f"changes={envelope.format} needs valueColumns, since {reason}: the columns of the table, such "
            "as id BIGINT, name STRING, amount DECIMAL(10,2). Nothing was written."
        )
    return value_columns(envelope.value_columns)


def _plain(declared: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(one.name, one.type) for one in declared])


def _avro_schema(envelope: Envelope) -> SchemaResolver:
    """
    Raises:
        ConfigurationError: there is no schema, or it is none, or fastavro is missing.
    """
    if not envelope.avro_schema:
        raise ConfigurationError(
            f"valueFormat={envelope.value_format} needs avroSchema: the schema that the messages were "
            "written with, as JSON. Nothing was written."
        )
    try:
        AvroSchema.parse(envelope.avro_schema)
    except SchemaMismatchError as error:
        raise ConfigurationError(f"{error} Nothing was written.") from error
    except ModuleNotFoundError:
        raise ConfigurationError(
            "valueFormat=avro needs fastavro, on the driver and the executors: pip install 'penstock[avro]'."
        ) from None
    return OneSchema(envelope.avro_schema)
