"""Avro object container files, with the logical types of Spark's own writer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import IO, Any, BinaryIO, cast

import pyarrow as pa
from pyarrow import types

from ..parquet.columns import is_list, is_string
from .counted import Counted

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CODECS = {"deflate": "deflate", "none": "null"}
_PRIMITIVE: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (types.is_boolean, "boolean"),
    (types.is_int64, "long"),
    (types.is_integer, "int"),
    (types.is_float32, "float"),
    (types.is_float64, "double"),
    (is_string, "string"),
    (types.is_binary, "bytes"),
    (types.is_large_binary, "bytes"),
    (types.is_date32, {"type": "int", "logicalType": "date"}),
)


class Avro:
    """See `Encoder`."""

    memory_bytes = 64 * 1024

    def __init__(self, file: Counted, schema: pa.Schema, codec: str) -> None:
        from fastavro.write import Writer

        self._writer = Writer(cast("IO[bytes]", file), _schema(schema), codec=_CODECS[codec])
        self._converters = [_converter(field.type) for field in schema]

    def write(self, rows: pa.RecordBatch) -> None:
        columns = [
            map(convert, column.to_pylist())
            for convert, column in zip(self._converters, rows.columns, strict=True)
        ]
        for values in zip(*columns, strict=True):
            self._writer.write(dict(zip(rows.schema.names, values, strict=True)))

    def close(self) -> None:
        self._writer.flush()


def problems(schema: pa.Schema) -> Iterator[str]:
    for field in schema:
        yield from _problems(field, field.name)


def _problems(field: pa.Field, path: str) -> Iterator[str]:
    data_type = field.type
    if _NAME.fullmatch(field.name) is None:
        yield f"{path}: names of Avro have only letters, digits and _, not first a digit. Rename it."
    if types.is_struct(data_type):
        for child in data_type:
            yield from _problems(child, f"{path}.{child.name}")
    elif types.is_map(data_type):
        if not is_string(data_type.key_type):
            yield f"{path}: keys of Avro's maps are texts. Cast them, for example with transform_keys."
        yield from _problems(data_type.item_field.with_name("value"), f"{path}.value")
    elif is_list(data_type):
        yield from _problems(data_type.value_field.with_name("element"), f"{path}.element")
    elif _primitive(data_type) is None:
        yield f"{path} is {data_type}, which Avro does not have. Cast it to STRING."


def stored_types(content: BinaryIO) -> dict[str, str]:
    from fastavro import reader

    schema: Any = reader(content).writer_schema
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("it does not have records")
    return {field["name"]: _spelled(field["type"]) for field in schema["fields"]}


def type_name(data_type: pa.DataType) -> str:
    return _spelled(_nullable(data_type, count()))


def _spelled(avro_type: Any) -> str:
    """Return a type as text, without the names of records."""
    return json.dumps(_without_names(avro_type), sort_keys=True)


def _without_names(avro_type: Any) -> Any:
    if isinstance(avro_type, list):
        others = [_without_names(one) for one in avro_type if one != "null"]
        return others[0] if len(others) == 1 else others
    if not isinstance(avro_type, dict):
        return avro_type
    kept = ("type", "logicalType", "precision", "scale", "items", "values")
    found = {key: _without_names(avro_type[key]) for key in kept if key in avro_type}
    if "fields" in avro_type:
        found["fields"] = [[one["name"], _without_names(one["type"])] for one in avro_type["fields"]]
    return found if len(found) > 1 else found["type"]


def _schema(schema: pa.Schema) -> dict[str, Any]:
    return _record("topLevelRecord", schema, count())


def _record(name: str, fields: Any, numbers: Iterator[int]) -> dict[str, Any]:
    columns = [{"name": field.name, "type": _nullable(field.type, numbers)} for field in fields]
    return {"type": "record", "name": name, "fields": columns}


def _nullable(data_type: pa.DataType, numbers: Iterator[int]) -> list[Any]:
    return ["null", _avro_type(data_type, numbers)]


def _avro_type(data_type: pa.DataType, numbers: Iterator[int]) -> Any:
    if types.is_struct(data_type):
        return _record(f"record{next(numbers)}", data_type, numbers)
    if types.is_map(data_type):
        return {"type": "map", "values": _nullable(data_type.item_type, numbers)}
    if is_list(data_type):
        return {"type": "array", "items": _nullable(data_type.value_type, numbers)}
    return _primitive(data_type)


def _primitive(data_type: pa.DataType) -> Any:
    if types.is_decimal(data_type):
        digits = {"precision": data_type.precision, "scale": data_type.scale}
        return {"type": "bytes", "logicalType": "decimal", **digits}
    if types.is_timestamp(data_type):
        return {"type": "long", "logicalType": f"{'' if data_type.tz else 'local-'}timestamp-micros"}
    return next((name for is_type, name in _PRIMITIVE if is_type(data_type)), None)


def _converter(data_type: pa.DataType) -> Callable[[Any], Any]:
    """Return the conversion of Arrow's Python values: maps become dictionaries."""
    if types.is_struct(data_type):
        inner = {field.name: _converter(field.type) for field in data_type}
        return lambda row: row and {name: inner[name](value) for name, value in row.items()}
    if types.is_map(data_type):
        of_item = _converter(data_type.item_type)
        return lambda pairs: None if pairs is None else {key: of_item(value) for key, value in pairs}
    if is_list(data_type):
        of_element = _converter(data_type.value_type)
        return lambda values: values and [of_element(value) for value in values]
    return lambda value: value
