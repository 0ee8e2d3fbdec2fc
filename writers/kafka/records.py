"""Converts rows to Kafka records: columns with the names of Spark's own sink, or whole rows as JSON, Avro or
Protobuf.

Runs in tasks, which check the rows before they are written to the row log, and where they are sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from ...committers.errors import SchemaMismatchError
from ..parquet.columns import is_list
from ..requests.json_rows import check_json_schema, check_values, json_objects, json_values
from ..requests.row_ids import check_column
from ..requests.template import Template
from .schemas import ValueSchemas

if TYPE_CHECKING:
    from ...committers.kafka.records import Headers, Record
    from ...committers.requests.contract import RowPlace

ValueFormat: TypeAlias = Literal["columns", "json", "avro", "protobuf"]
COLUMNS = ("value", "key", "headers", "topic", "partition", "timestamp")
"""Columns of Spark's own sink, and `timestamp`."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
VALUE_BYTES_MAX = 64
"""Of a number, a time or a decimal as JSON."""
OVERHEAD_BYTES = 100
"""Of a record, besides key, value and headers."""
_NUMBER = "\0number"
_PARTITION_MAX = 2**31 - 1
_TIMESTAMP_MAX = 2**62
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def topic_problem(name: str) -> str | None:
    """Return why a text cannot be the name of a topic; None if it can."""
    if _TOPIC.fullmatch(name) and name not in (".", ".."):
        return None
    return "must be the name of a topic: at most 249 letters, digits, dots, - and _"


@dataclass(frozen=True, slots=True)
class KafkaRecords:
    """See `RowRecords`."""

    topic: Template
    value_format: ValueFormat
    key_columns: tuple[str, ...]
    record_bytes_max: int
    delete_when: str = ""
    """Of whole rows: which are tombstones, without a value; empty: none."""
    condition: Callable[[str, pa.Schema], pc.Expression] | None = None
    """Parses `delete_when`."""
    schemas: ValueSchemas | None = None
    """With `avro` and `protobuf`."""

    def check_schema(self, rows: pa.Schema) -> None:
        self.topic.check(rows)
        if self.value_format != "columns":
            if self.schemas is None:
                check_json_schema(rows, "Kafka")
            else:
                self.schemas.check_schema(rows)
            for column in self.key_columns:
                check_column(rows, "keyColumns", column)
            self._deletes(rows)
            return
        problems = list(_problems_of_columns(rows))
        if problems:
            lines = "".join(f"\n  - {problem}" for problem in problems)
            raise SchemaMismatchError(f"These rows cannot be records of Kafka:{lines}")

    def check(self, rows: pa.RecordBatch) -> None:
        """See `RowRecords`. Converts rows only if one could be too large, or has to be looked at."""
        if self.value_format != "columns":
            has_given_schema = self.schemas is not None and not self.schemas.is_derived
            largest = None if has_given_schema else _json_bytes_max(rows)  # Avro and Protobuf are smaller
            if largest is None or 2 * largest + OVERHEAD_BYTES > self.record_bytes_max:  # with the key
                self.entries(rows)
            else:
                check_values(rows)
                self._topics(rows)
            return
        if {"headers", "partition", "timestamp"} & set(rows.schema.names):
            self.entries(rows)
            return
        self._topics(rows)
        self._check_size(_columns_bytes_max(rows))

    def entries(self, rows: pa.RecordBatch, place: RowPlace | None = None) -> Sequence[Record]:
        """See `RowRecords`."""
        topics = self._topics(rows)
        if self.value_format != "columns":
            keys = self._keys(rows)
            values = self._values(rows, topics)
            records = [
                (topic, value, key, -1, 0, None)
                for topic, value, key in zip(topics, values, keys, strict=True)
            ]
        else:
            columns = (
                _bytes(rows, "value"),
                _bytes(rows, "key"),
                _partitions(rows),
                _times(rows),
                _headers(rows),
            )
            records = list(zip(topics, *columns, strict=True))
            if "headers" not in rows.schema.names:
                self._check_size(_columns_bytes_max(rows))
                return records
        self._check_size(max(map(_size, records), default=0))
        return records

    def _topics(self, rows: pa.RecordBatch) -> Sequence[str]:
        """
        Raises:
            SchemaMismatchError: a topic is NULL, or cannot be the name of one.
        """
        if not self.topic.columns:
            return [self.topic.text] * rows.num_rows
        topics = self.topic.texts(rows)
        for topic in set(topics):
            if (problem := topic_problem(topic)) is not None:
                raise SchemaMismatchError(f"A row has the topic {topic[:300]!r}, which {problem}.")
        return topics

    def _deletes(self, rows: pa.Schema) -> pc.Expression | None:
        """
        Raises:
            ConfigurationError: the expression does not fit the columns.
        """
        return self.condition(self.delete_when, rows) if self.condition and self.delete_when else None

    def planned(self, rows: pa.Schema) -> KafkaRecords:
        """Return what checks rows in tasks, after the schema was found or registered.

        Raises:
            ConfigurationError, SchemaMismatchError, RetryableError: see `ValueSchemas.planned`.
        """
        if self.schemas is None:
            return self
        topic = None if self.topic.columns else self.topic.text
        return replace(self, schemas=self.schemas.planned(rows, topic))

    def _values(self, rows: pa.RecordBatch, topics: Sequence[str]) -> list[bytes | None]:
        values: list[bytes | None]
        values = [*(json_objects(rows) if self.schemas is None else self.schemas.values(rows, topics))]
        if (deletes := self._deletes(rows.schema)) is None:
            return values
        numbers = pa.array(range(rows.num_rows), pa.int64())
        numbered = pa.table([*rows.columns, numbers], names=[*rows.schema.names, _NUMBER])
        for number in numbered.filter(deletes)[_NUMBER].to_pylist():
            values[number] = None
        return values

    def _keys(self, rows: pa.RecordBatch) -> Sequence[bytes | None]:
        if not self.key_columns:
            return [None] * rows.num_rows
        if len(self.key_columns) > 1:
            return json_objects(rows.select(list(self.key_columns)))
        (name,) = self.key_columns
        column = rows.column(name)
        if _is_text(column.type) or _is_binary(column.type):
            return _bytes(rows, name)
        texts = json_values(column, name)
        return [None if text is None else _text(text) for text in texts]

    def _check_size(self, size: int) -> None:
        if size + OVERHEAD_BYTES > self.record_bytes_max:
            raise SchemaMismatchError(
                f"A record has {size:,} bytes, and maxRecordBytes is {self.record_bytes_max:,}. Raise it, "
                "with max.message.bytes of the topic; or filter these rows."
            )


def _text(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _size(record: Record) -> int:
    _, value, key, _, _, headers = record
    size = len(value or b"") + len(key or b"")
    if headers:
        size += sum(len(name.encode()) + len(text or b"") + 10 for name, text in headers)
    return size


def _columns_bytes_max(rows: pa.RecordBatch) -> int:
    """Return the size of the largest record, without headers."""
    sizes = [
        pc.fill_null(pc.binary_length(rows.column(name)), 0)
        for name in ("key", "value")
        if name in rows.schema.names
    ]
    return pc.max(sizes[0] if len(sizes) == 1 else pc.add(*sizes)).as_py() or 0


def _json_bytes_max(rows: pa.RecordBatch) -> int | None:
    """Return a size that no JSON object of the rows exceeds; None if that is not known without conversion."""
    size = 2
    for column, field in zip(rows.columns, rows.schema, strict=True):
        if types.is_nested(field.type):
            return None
        size += 6 * len(field.name.encode()) + 4
        is_long = _is_text(field.type) or _is_binary(field.type)
        size += 6 * _bytes_max(column) + 6 if is_long else VALUE_BYTES_MAX
    return size


def _bytes_max(column: pa.Array) -> int:
    """Return the size of the longest text or bytes."""
    return pc.max(pc.binary_length(column)).as_py() or 0


# Columns with the names of Spark's own sink ---------------------------------------------------------


def _problems_of_columns(rows: pa.Schema) -> Iterator[str]:
    kinds = {
        "value": (_is_text, _is_binary),
        "key": (_is_text, _is_binary),
        "topic": (_is_text,),
        "partition": (types.is_integer,),
        "timestamp": (types.is_timestamp,),
        "headers": (_are_headers,),
    }
    wanted = {
        "value": "STRING or BINARY",
        "key": "STRING or BINARY",
        "topic": "STRING",
        "partition": "INT",
        "timestamp": "TIMESTAMP",
        "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    }
    if "value" not in rows.names:
        yield "the column value is missing; whole rows are sent with valueFormat=json, avro or protobuf"
    for field in rows:
        if field.name not in kinds:
            yield f"{field.name} would be lost: drop the column, or send whole rows with valueFormat=json"
        elif not any(is_kind(field.type) for is_kind in kinds[field.name]):
            yield f"{field.name} is {field.type} and must be {wanted[field.name]}"


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _are_headers(kind: pa.DataType) -> bool:
    if not is_list(kind) or not types.is_struct(kind.value_type):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return set(fields) == {"key", "value"} and _is_text(fields["key"]) and _is_binary(fields["value"])


def _bytes(rows: pa.RecordBatch, name: str) -> list[bytes | None]:
    """Return the values of a text or a binary column; None for all if there is no such column."""
    if name not in rows.schema.names:
        return [None] * rows.num_rows
    column = rows.column(name)
    kind = pa.large_binary() if types.is_large_string(column.type) else pa.binary()
    found: list[bytes | None] = (column.cast(kind) if _is_text(column.type) else column).to_pylist()
    return found


def _partitions(rows: pa.RecordBatch) -> list[int]:
    if "partition" not in rows.schema.names:
        return [-1] * rows.num_rows
    partitions = [-1 if number is None else number for number in rows.column("partition").to_pylist()]
    if wrong := [number for number in partitions if not -1 <= number <= _PARTITION_MAX]:
        raise SchemaMismatchError(f"A row has the partition {wrong[0]}, which does not exist.")
    return partitions


def _times(rows: pa.RecordBatch) -> list[int]:
    """Return milliseconds since 1970; 0 for now."""
    if "timestamp" not in rows.schema.names:
        return [0] * rows.num_rows
    micros = rows.column("timestamp").cast(pa.int64()).to_pylist()
    if wrong := [one for one in micros if one is not None and not 1000 <= one <= _TIMESTAMP_MAX]:
        raise SchemaMismatchError(
            f"A row has a timestamp that Kafka cannot store: {wrong[0]} microseconds since 1970."
        )
    return [0 if one is None else one // 1000 for one in micros]


def _headers(rows: pa.RecordBatch) -> list[Headers | None]:
    if "headers" not in rows.schema.names:
        return [None] * rows.num_rows
    try:
        found = rows.column("headers").to_pylist()
    except UnicodeDecodeError:
        raise SchemaMismatchError("The name of a header is no valid UTF-8.") from None
    headers = []
    for given in found:
        if given is not None and any(one is None or one["key"] is None for one in given):
            raise SchemaMismatchError("A row has a header without a name.")
        headers.append(None if given is None else [(one["key"], one["value"]) for one in given])
    return headers
