"""Reads JSON messages: with or without the schema that Kafka Connect's converter adds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.arrow_values import numeric_array, string_array
from ....committers.errors import SchemaMismatchError
from .conversion import Logical
from .formats import Format
from .json_columns import parse_columns, samples
from .json_rows import with_rows
from .messages import Fields, Messages, ObjectFields, Path

_SCHEMA, _PAYLOAD = '{"schema":', '"payload":'
_ID_BYTES = 5
_SCHEMAS_MAX = 20
"""Schemas in a batch of Arrow that are read by the fast parser."""


@dataclass(frozen=True, slots=True)
class JsonReader:
    """See `ValueReader`."""

    format: Format
    columns: pa.Schema
    keys: tuple[str, ...]

    def read(self, values: pa.Array, rows: pa.Array) -> Iterator[Messages]:
        """
        Args:
            values: strings or binaries without NULL
            rows: their row numbers
        """
        texts = _texts(values)
        wrapped = pc.starts_with(texts, _SCHEMA)
        plain = texts.filter(pc.invert(wrapped))
        if len(plain):
            yield from self._group(plain, plain, rows.filter(pc.invert(wrapped)), {})
        if len(plain) < len(texts):
            yield from self._wrapped(texts.filter(wrapped), rows.filter(wrapped))

    def _wrapped(self, texts: pa.Array, rows: pa.Array) -> Iterator[Messages]:
        """Read messages with a schema. Those with the same schema are parsed together, without it."""
        for _ in range(_SCHEMAS_MAX):
            if not len(texts):
                return
            before, found, _ = texts[0].as_py().partition(_PAYLOAD)
            start = before + found
            own = pc.and_(pc.starts_with(texts, start), pc.ends_with(texts, "}"))
            try:
                schema = json.loads(f"{start}null}}")["schema"]
            except (ValueError, RecursionError):
                break
            if not own[0].as_py():
                break
            originals = texts.filter(own)
            payloads = pc.binary_slice(originals.cast(pa.binary()), len(start.encode()), -1).cast(pa.string())
            yield from self._group(payloads, originals, rows.filter(own), connect_types(schema))
            others = pc.invert(own)
            texts, rows = texts.filter(others), rows.filter(others)
        yield from self._slow(texts, rows)

    def _group(
        self, texts: pa.Array, originals: pa.Array, rows: pa.Array, logical: Mapping[Path, Logical]
    ) -> Iterator[Messages]:
        """
        Args:
            originals: with their schema
        """
        is_tombstone = pc.equal(texts, string_array(["null"])[0])
        if pc.any(is_tombstone).as_py():
            some = pc.invert(is_tombstone)
            texts, originals, rows = texts.filter(some), originals.filter(some), rows.filter(some)
        if not len(texts):
            return
        fast = self._fast(texts, rows, logical)
        if fast is not None:
            yield fast
        else:
            yield from self._slow(originals, rows)

    def _fast(self, texts: pa.Array, rows: pa.Array, logical: Mapping[Path, Logical]) -> Messages | None:
        sample = samples(texts)
        if sample is None or any("schema" in one and "payload" in one for one in sample):
            return None
        marker = self.format.flat_marker
        is_flat = marker is not None and marker in sample[0]
        fields: Fields | None = parse_columns(texts, sample, self._wanted(sample, is_flat))
        if fields is None:
            return None
        if marker is not None:
            flat = fields.has((marker,))
            if pc.any(pc.xor(flat, pa.repeat(pa.scalar(is_flat), len(flat)))).as_py():
                return None  # messages of both forms
        return Messages(self._with_rows(fields), rows, logical, is_flat)

    def _wanted(self, sample: Sequence[Mapping[str, Any]], is_flat: bool) -> dict[Path, pa.DataType]:
        kind = self.format
        if is_flat:
            return {**{(one.name,): one.type for one in self.columns}, **kind.flat_metadata}
        wanted = {**kind.metadata}
        if kind.flat_marker is not None:
            wanted[(kind.flat_marker,)] = pa.string()
        keys = pa.schema([self.columns.field(name) for name in self.keys])
        for path, columns in ((kind.after, self.columns), (kind.before, keys)):
            if any(isinstance(one.get(path[0]), str) for one in sample):
                wanted[path] = pa.string()
            else:
                wanted.update({(*path, one.name): one.type for one in columns})
        return wanted

    def _slow(self, texts: pa.Array, rows: pa.Array) -> Iterator[Messages]:
        groups: dict[tuple[bool, str], tuple[list[dict[str, Any]], list[int], Any]] = {}
        for text, row in zip(texts.to_pylist(), rows.to_pylist(), strict=True):
            message, schema = unwrapped(parse_object(text))
            if message is None:
                continue
            is_flat = self.format.flat_marker is not None and self.format.flat_marker in message
            key = is_flat, json.dumps(schema) if schema else ""
            messages, numbers, _ = groups.setdefault(key, ([], [], schema))
            messages.append(message)
            numbers.append(row)
        for (is_flat, _), (messages, numbers, schema) in groups.items():
            fields = self._with_rows(ObjectFields(messages))
            yield Messages(fields, numeric_array(numbers), connect_types(schema), is_flat)

    def _with_rows(self, fields: Fields) -> Fields:
        return with_rows(fields, (self.format.after, self.format.before), self.columns)


def _texts(values: pa.Array) -> pa.Array:
    """Return the texts, without the schema id that Confluent's converter for JSON writes before them.

    Raises:
        SchemaMismatchError: a value is no text.
    """
    try:
        has_id = pc.starts_with(values.cast(pa.binary()), "\0")
        if pc.any(has_id).as_py():
            values = values.cast(pa.binary())
            values = pc.if_else(has_id, pc.binary_slice(values, _ID_BYTES), values)
        return values.cast(pa.string())
    except pa.ArrowException as error:
        raise SchemaMismatchError(f"A message is no text, so no JSON: {error}.") from error


def parse_object(text: str) -> dict[str, Any] | None:
    """
    Raises:
        SchemaMismatchError: the text is neither a JSON object nor null.
    """
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaMismatchError(f"A message is no JSON: {error}.") from error
    if parsed is not None and not isinstance(parsed, dict):
        raise SchemaMismatchError("A message is JSON, but no object.")
    return parsed


def unwrapped(message: dict[str, Any] | None) -> tuple[dict[str, Any] | None, Any]:
    """Return the payload of a message and its schema; None for a payload that is null.

    Raises:
        SchemaMismatchError: the payload is no object.
    """
    if message is None or set(message) != {"schema", "payload"}:
        return message, None
    payload = message["payload"]
    if payload is not None and not isinstance(payload, dict):
        raise SchemaMismatchError("The payload of a message is no object.")
    return payload, message["schema"]


def connect_types(schema: Any) -> dict[Path, Logical]:
    """Return the logical types in a schema of Kafka Connect: of its fields, and of those one level below."""
    found: dict[Path, Logical] = {}
    for field in _fields(schema):
        found.update(_logical((str(field.get("field")),), field))
        for inner in _fields(field):
            found.update(_logical((str(field.get("field")), str(inner.get("field"))), inner))
    return found


def _fields(schema: Any) -> list[Mapping[str, Any]]:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    return [one for one in fields if isinstance(one, dict)] if isinstance(fields, list) else []


def _logical(path: Path, field: Mapping[str, Any]) -> dict[Path, Logical]:
    name, parameters = field.get("name"), field.get("parameters")
    if not isinstance(name, str):
        return {}
    return {path: Logical.of(name, parameters.get("scale") if isinstance(parameters, dict) else None)}
