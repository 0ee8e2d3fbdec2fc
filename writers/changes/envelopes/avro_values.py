"""Reads Avro messages with fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa

from ....committers.arrow_values import numeric_array
from ....committers.errors import SchemaMismatchError
from ....committers.schema_registry import SchemaRegistry
from .conversion import Logical
from .formats import Format
from .json_rows import with_rows
from .messages import Messages, ObjectFields, Path

SchemaResolver: TypeAlias = Callable[[int], str]
"""Returns the writer's schema for a schema id, as JSON. It is pickled."""

_MAGIC = 0
_HEADER_BYTES = 5


@dataclass(frozen=True, slots=True)
class OneSchema:
    """A `SchemaResolver` for messages that all have one schema."""

    text: str

    def __call__(self, schema_id: int) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class RegistrySchemas:
    """A `SchemaResolver` for messages whose schemas are in a registry. Tasks read them there, once each."""

    registry: SchemaRegistry

    def __call__(self, schema_id: int) -> str:
        """
        Raises:
            SchemaMismatchError: the registry does not have the schema, or it is not one of Avro.
            RetryableError: the registry does not answer, or denies access.
        """
        found = self.registry.schema(schema_id)
        if found.kind != "AVRO":
            raise SchemaMismatchError(f"A message has the schema {schema_id}, which is {found.kind}.")
        return found.text


@dataclass(frozen=True, slots=True)
class AvroReader:
    """See `ValueReader`."""

    format: Format
    columns: pa.Schema
    schema_of: SchemaResolver
    has_schema_id: bool
    """True for Confluent's wire format: a zero byte and four bytes of a schema id before each message."""

    def read(self, values: pa.Array, rows: pa.Array) -> Iterator[Messages]:
        by_schema: dict[int, tuple[list[bytes], list[int]]] = {}
        for value, row in zip(values.cast(pa.binary()).to_pylist(), rows.to_pylist(), strict=True):
            schema_id, content = self._split(value)
            contents, numbers = by_schema.setdefault(schema_id, ([], []))
            contents.append(content)
            numbers.append(row)
        for schema_id, (contents, numbers) in by_schema.items():
            yield from self._group(AvroSchema.parse(self.schema_of(schema_id)), contents, numbers)

    def _split(self, value: bytes) -> tuple[int, bytes]:
        if not self.has_schema_id:
            return 0, value
        if len(value) < _HEADER_BYTES or value[0] != _MAGIC:
            raise SchemaMismatchError(
                "A message does not begin with a zero byte and a schema id, as valueFormat=avro-confluent "
                "requires. For messages without them, use valueFormat=avro."
            )
        return int.from_bytes(value[1:_HEADER_BYTES], "big"), value[_HEADER_BYTES:]

    def _group(self, schema: AvroSchema, contents: list[bytes], numbers: list[int]) -> Iterator[Messages]:
        forms: dict[bool, tuple[list[dict[str, Any]], list[int]]] = {}
        for message, number in zip(schema.decode(contents), numbers, strict=True):
            is_flat = self.format.flat_marker is not None and self.format.flat_marker in message
            messages, rows = forms.setdefault(is_flat, ([], []))
            messages.append(message)
            rows.append(number)
        for is_flat, (messages, rows) in forms.items():
            fields = with_rows(ObjectFields(messages), (self.format.after, self.format.before), self.columns)
            yield Messages(fields, numeric_array(rows), schema.logical, is_flat)


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A writer's schema. Values are decoded without their logical types, which `Logical` has."""

    parsed: Any
    logical: Mapping[Path, Logical]

    @classmethod
    @lru_cache(maxsize=100)
    def parse(cls, text: str) -> AvroSchema:
        """
        Raises:
            SchemaMismatchError: the text is no schema of a record.
            ModuleNotFoundError: fastavro is not installed.
        """
        import fastavro

        try:
            schema = json.loads(text)
            logical = _logical_types(schema)
            return cls(fastavro.parse_schema(_without_logical_types(schema)), logical)
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
            raise SchemaMismatchError(f"avroSchema is no schema of a record: {error}.") from error
        except fastavro.schema.SchemaParseException as error:
            raise SchemaMismatchError(f"avroSchema is no schema of a record: {error}.") from error

    def decode(self, contents: Iterable[bytes]) -> Iterator[dict[str, Any]]:
        """
        Raises:
            SchemaMismatchError: a content was not written with the schema.
        """
        from fastavro import schemaless_reader

        for content in contents:
            stream = io.BytesIO(content)
            try:
                message = schemaless_reader(stream, self.parsed)
            except Exception as error:  # fastavro raises whatever damaged bytes lead to
                raise SchemaMismatchError(
                    f"A message was not written with the Avro schema: {error!r}."
                ) from error
            if stream.tell() != len(content) or not isinstance(message, dict):
                raise SchemaMismatchError("A message was not written with the Avro schema: bytes are left.")
            yield message


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(one) for one in schema]
    if isinstance(schema, dict):
        return {name: _without_logical_types(one) for name, one in schema.items() if name != "logicalType"}
    return schema


def _logical_types(schema: Any) -> Mapping[Path, Logical]:
    """Return the logical types of the fields, and of those one level below."""
    records: dict[str, Any] = {}
    _collect(schema, records)
    found: dict[Path, Logical] = {}
    for field in _record(schema, records)["fields"]:
        kind = _not_null(field["type"])
        found.update(_logical((field["name"],), kind))
        record = _record(kind, records)
        for inner in record["fields"] if record else ():
            found.update(_logical((field["name"], inner["name"]), _not_null(inner["type"])))
    return found


def _collect(schema: Any, records: dict[str, Any], namespace: str = "") -> None:
    """Gather the records of a schema by name, with and without their namespace."""
    if isinstance(schema, list):
        for one in schema:
            _collect(one, records, namespace)
    elif isinstance(schema, dict):
        if schema.get("type") == "record":
            namespace = schema.get("namespace", namespace)
            records[schema["name"]] = records[f"{namespace}.{schema['name']}"] = schema
            for field in schema["fields"]:
                _collect(field["type"], records, namespace)
        else:
            for inner in ("type", "items", "values"):
                _collect(schema.get(inner), records, namespace)


def _record(kind: Any, records: Mapping[str, Any]) -> Any:
    if isinstance(kind, dict) and kind.get("type") == "record":
        return kind
    return records.get(kind) if isinstance(kind, str) else None


def _not_null(kind: Any) -> Any:
    """Return the type of a value that may be null."""
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        return others[0] if len(others) == 1 else None
    return kind


def _logical(path: Path, kind: Any) -> dict[Path, Logical]:
    if not isinstance(kind, dict):
        return {}
    name = kind.get("connect.name") or kind.get("logicalType")
    if kind.get("logicalType") == "decimal":
        name = "decimal"
    return {path: Logical.of(name, kind.get("scale", 0))} if isinstance(name, str) else {}
