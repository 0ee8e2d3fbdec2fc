"""Rows as Avro records, with a schema that is derived from the columns, or given."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import types

from ...committers.errors import ConfigurationError, SchemaMismatchError
from ..parquet.columns import is_list, is_string
from ..requests.python_values import python_values

Convert: TypeAlias = Callable[[Any], Any]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  values have no zone, see `python_values`
_DAY = date(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


# Schemas ----------------------------------------------------------------------------------------------


def derived(rows: pa.Schema, full_name: str) -> str:
    """Return the schema of a record with these columns, as JSON. All fields may be null, so that columns can
    be added and removed compatibly. Types are those of Spark's `to_avro`.

    Raises:
        SchemaMismatchError: names the columns that Avro does not have.
    """
    space, _, name = full_name.rpartition(".")
    problems: list[str] = []
    record: dict[str, Any] = {"type": "record", "name": name}
    if space:
        record["namespace"] = space
    record["fields"] = [_field(column, full_name, column.name, problems) for column in rows]
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise SchemaMismatchError(f"These columns cannot be sent to Kafka as Avro:{lines}")
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def _field(column: pa.Field, space: str, path: str, problems: list[str]) -> dict[str, Any]:
    if not _NAME.fullmatch(column.name):
        problems.append(f"{path}: names in Avro have letters, digits and _ only: rename it")
    return {"name": column.name, "type": ["null", _type(column.type, space, path, problems)], "default": None}


def _type(kind: pa.DataType, space: str, path: str, problems: list[str]) -> Any:
    if types.is_struct(kind):
        name = path.rpartition(".")[2]
        fields = [_field(one, f"{space}.{name}", f"{path}.{one.name}", problems) for one in kind]
        return {"type": "record", "name": name, "namespace": space, "fields": fields}
    if is_list(kind):
        return {
            "type": "array",
            "items": ["null", _type(kind.value_type, space, f"{path}.element", problems)],
        }
    if types.is_map(kind):
        if not is_string(kind.key_type):
            problems.append(f"{path} is a map whose keys are {kind.key_type}: cast them to STRING")
        return {"type": "map", "values": ["null", _type(kind.item_type, space, f"{path}.value", problems)]}
    if types.is_decimal(kind):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if types.is_timestamp(kind):
        name = "timestamp-micros" if kind.tz else "local-timestamp-micros"
        return {"type": "long", "logicalType": name}
    if types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    for is_kind, avro in _PLAIN:
        if is_kind(kind):
            return avro
    problems.append(f"{path} is {kind}: cast it to STRING")
    return "null"


_PLAIN: Sequence[tuple[Callable[[pa.DataType], bool], str]] = (
    (types.is_boolean, "boolean"),
    (lambda kind: types.is_integer(kind) and kind.bit_width <= 32, "int"),
    (types.is_int64, "long"),
    (types.is_float32, "float"),
    (types.is_float64, "double"),
    (is_string, "string"),
    (lambda kind: types.is_binary(kind) or types.is_large_binary(kind), "bytes"),
)


# Values -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AvroEncoder:
    """Writes rows with one schema."""

    schema: Any
    names: tuple[str, ...]
    converters: tuple[Convert | None, ...]

    def values(self, rows: pa.RecordBatch) -> list[bytes]:
        """
        Raises:
            SchemaMismatchError: a value cannot be written with the schema.
        """
        from fastavro import schemaless_writer

        columns = []
        for name, convert in zip(self.names, self.converters, strict=True):
            try:
                values = python_values(rows.column(name))
                columns.append(
                    values
                    if convert is None
                    else [None if value is None else convert(value) for value in values]
                )
            except (ValueError, OverflowError) as error:
                raise SchemaMismatchError(f"A value in {name} cannot be written as Avro: {error}.") from None
        written = []
        for row in zip(*columns, strict=True):
            output = io.BytesIO()
            try:
                schemaless_writer(output, self.schema, dict(zip(self.names, row, strict=True)))
            except Exception as error:  # fastavro raises whatever a value leads to
                raise SchemaMismatchError(
                    f"A row cannot be written with the Avro schema: {type(error).__name__}: {error}"[:500]
                ) from error
            written.append(output.getvalue())
        return written


@lru_cache(maxsize=100)
def encoder(text: str, rows: pa.Schema) -> AvroEncoder:
    """Return what writes rows with a schema.

    Raises:
        ConfigurationError: the text is no schema of a record, or fastavro is missing.
        SchemaMismatchError: the columns do not fit it.
    """
    try:
        from fastavro import parse_schema
    except ModuleNotFoundError:
        raise ConfigurationError(
            "valueFormat=avro needs fastavro, on the driver, the executors and where the delivery process "
            "runs: pip install 'penstock[registry]'."
        ) from None
    try:
        schema = json.loads(text)
        named: dict[str, Any] = {}
        _collect(schema, named, "")
        parsed = parse_schema(_without_logical_types(schema))
        fields = {field["name"]: field for field in schema["fields"]}
    except Exception as error:  # it is a text of others
        raise ConfigurationError(f"The Avro schema is none of a record: {error!r}"[:500] + ".") from error
    problems = [
        f"the schema has no field {one.name}, which would be lost" for one in rows if one.name not in fields
    ]
    problems += [
        f"the field {name} has no default, and the query has no such column"
        for name, field in fields.items()
        if name not in rows.names and "default" not in field
    ]
    converters = [
        _converter(column.type, fields[column.name]["type"], column.name, named, problems)
        for column in rows
        if column.name in fields
    ]
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise SchemaMismatchError(f"The columns do not fit the Avro schema:{lines}")
    return AvroEncoder(parsed, tuple(rows.names), tuple(converters))


def _collect(schema: Any, named: dict[str, Any], space: str) -> None:
    """Gather the named types of a schema, with and without their namespace."""
    if isinstance(schema, list):
        for one in schema:
            _collect(one, named, space)
    elif isinstance(schema, dict):
        if "name" in schema and schema.get("type") in ("record", "enum", "fixed"):
            space = schema.get("namespace", space)
            named[schema["name"]] = named[f"{space}.{schema['name']}"] = schema
            for field in schema.get("fields", ()):
                _collect(field["type"], named, space)
        for inner in ("items", "values", "type"):
            _collect(schema.get(inner), named, space)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(one) for one in schema]
    if isinstance(schema, dict):
        return {
            name: one if name == "default" else _without_logical_types(one)
            for name, one in schema.items()
            if name != "logicalType"
        }
    return schema


def _converter(
    kind: pa.DataType, avro: Any, path: str, named: dict[str, Any], problems: list[str]
) -> Convert | None:
    """Return the conversion of values that are not NULL; None if they are written as they are."""
    avro = _single(avro, named)
    name = avro if isinstance(avro, str) else avro.get("type")
    logical = None if isinstance(avro, str) else avro.get("logicalType")
    if types.is_struct(kind) and name == "record":
        return _record(kind, avro, path, named, problems)
    if is_list(kind) and name == "array":
        return _each(_converter(kind.value_type, avro["items"], f"{path}.element", named, problems))
    if types.is_map(kind) and is_string(kind.key_type) and name == "map":
        return _map(_converter(kind.item_type, avro["values"], f"{path}.value", named, problems))
    if types.is_decimal(kind) and logical == "decimal" and name in ("bytes", "fixed"):
        if avro.get("scale", 0) >= kind.scale:
            return _decimal(kind.scale, avro)
    elif types.is_timestamp(kind):
        of_zone = "timestamp-" if kind.tz else "local-timestamp-"
        if name == "long" and logical == f"{of_zone}micros":
            return _micros
        if name == "long" and logical == f"{of_zone}millis":
            return _millis
    elif types.is_date(kind):
        if logical == "date":
            return _days
    elif logical is None or (is_string(kind) and logical == "uuid"):
        fitting = {
            "boolean": types.is_boolean(kind),
            "int": types.is_integer(kind) and kind.bit_width <= 32,
            "long": types.is_integer(kind),
            "float": types.is_float32(kind),
            "double": types.is_floating(kind),
            "string": is_string(kind),
            "enum": is_string(kind),
            "bytes": types.is_binary(kind) or types.is_large_binary(kind),
            "fixed": types.is_binary(kind) or types.is_large_binary(kind),
        }
        if fitting.get(str(name)):
            return None
    problems.append(f"{path} is {kind}, and the schema has {json.dumps(avro)[:100]}")
    return None


def _single(avro: Any, named: dict[str, Any]) -> Any:
    """Return the only type of a union besides null; a named type as its definition."""
    if isinstance(avro, list):
        others = [one for one in avro if one != "null"]
        avro = others[0] if len(others) == 1 else "a union"
    if isinstance(avro, dict) and isinstance(avro.get("type"), (dict, list)):
        return _single(avro["type"], named)
    return named.get(avro, avro) if isinstance(avro, str) else avro


def _record(
    kind: pa.DataType, avro: Any, path: str, named: dict[str, Any], problems: list[str]
) -> Convert | None:
    fields = {field["name"]: field for field in avro["fields"]}
    inner: dict[str, Convert | None] = {}
    for one in kind:
        if one.name not in fields:
            problems.append(f"the schema has no field {path}.{one.name}, which would be lost")
        else:
            inner[one.name] = _converter(
                one.type, fields[one.name]["type"], f"{path}.{one.name}", named, problems
            )
    names = {one.name for one in kind}
    problems += [
        f"the field {path}.{name} has no default, and the query has no such column"
        for name, field in fields.items()
        if name not in names and "default" not in field
    ]
    if not any(inner.values()):
        return None
    return lambda value: {name: _converted(inner[name], one) for name, one in value.items()}


def _each(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda values: [_converted(convert, one) for one in values]


def _map(convert: Convert | None) -> Convert:
    return lambda pairs: {key: _converted(convert, one) for key, one in pairs}


def _converted(convert: Convert | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


def _micros(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


def _millis(value: datetime) -> int:
    millis, rest = divmod(_micros(value), 1000)
    if rest:
        raise ValueError("it has microseconds, and the schema has milliseconds")
    return millis


def _days(value: date) -> int:
    return (value - _DAY).days


def _decimal(scale: int, avro: Any) -> Convert:
    factor, limit = 10 ** (avro.get("scale", 0) - scale), 10 ** avro["precision"]
    size = avro.get("size") if avro.get("type") == "fixed" else None

    def convert(value: Decimal) -> bytes:
        sign, digits, _ = value.as_tuple()
        unscaled: int = int("".join(map(str, digits))) * factor
        if unscaled >= limit:
            raise ValueError("it has more digits than the schema")
        unscaled = -unscaled if sign else unscaled
        size_bytes: int = size or (unscaled.bit_length() + 8) // 8
        return unscaled.to_bytes(size_bytes, "big", signed=True)

    return convert
