"""Columns of formats whose schema is Arrow's: with which types they are read, and what they are in Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from ..committers.errors import TableNotSupportedError
from ..writers.parquet.columns import is_list, is_string

_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.uint8(): "short",
    pa.uint16(): "integer",
    pa.uint32(): "long",
    pa.uint64(): "long",  # larger numbers are an error when they are read
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.date64(): "date",
}


def readable_field(field: pa.Field) -> pa.Field:
    """Return the field with the types that are read: without large offsets, views and dictionaries."""
    return pa.field(field.name, _readable(field.type), field.nullable)


def _readable(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(data_type):
        return _readable(data_type.value_type)
    if is_string(data_type):
        return pa.string()
    if types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return pa.binary()
    if types.is_struct(data_type):
        return pa.struct([readable_field(child) for child in data_type])
    if types.is_map(data_type):
        return pa.map_(readable_field(data_type.key_field), readable_field(data_type.item_field))
    if is_list(data_type):
        return pa.list_(readable_field(data_type.value_field))
    if types.is_fixed_size_list(data_type):
        return pa.list_(readable_field(data_type.value_field), data_type.list_size)
    return data_type


def spark_field(field: pa.Field) -> Mapping[str, Any]:
    """Return the field in Spark's JSON. `check_readable` has accepted it."""
    return {"name": field.name, "type": _spark_type(field.type), "nullable": field.nullable, "metadata": {}}


def _spark_type(data_type: pa.DataType) -> Any:
    types = pa.types
    if types.is_struct(data_type):
        return {"type": "struct", "fields": [spark_field(child) for child in data_type]}
    if types.is_map(data_type):
        return {
            "type": "map",
            "keyType": _spark_type(data_type.key_type),
            "valueType": _spark_type(data_type.item_type),
            "valueContainsNull": data_type.item_field.nullable,
        }
    if is_list(data_type) or types.is_fixed_size_list(data_type):
        element = data_type.value_field
        return {"type": "array", "elementType": _spark_type(element.type), "containsNull": element.nullable}
    if types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if types.is_timestamp(data_type):
        return "timestamp_ntz" if data_type.tz is None else "timestamp"
    if types.is_binary(data_type) or types.is_fixed_size_binary(data_type):
        return "binary"
    return _PLAIN.get(data_type, "string")


def check_readable(fields: Iterable[pa.Field], table: str) -> None:
    """
    Args:
        fields: as the table has them
        table: for messages

    Raises:
        TableNotSupportedError: a column has a type that Spark does not have, or that is stored elsewhere.
    """
    for field in fields:
        for path, found in _unreadable(field, field.name):
            raise TableNotSupportedError(
                f"{table[0].upper()}{table[1:]} cannot be read: the column {path!r} is {found}, which "
                "Penstock does not read. Nothing was read. Give the other columns in the option columns."
            )


def _unreadable(field: pa.Field, path: str) -> Iterator[tuple[str, str]]:
    data_type, types = field.type, pa.types
    metadata = {key.decode(errors="replace") for key in field.metadata or {}}
    if isinstance(data_type, pa.BaseExtensionType) or "ARROW:extension:name" in metadata:
        yield path, f"of the extension type {data_type}"
    elif any("blob" in key for key in metadata):
        yield path, "stored as blobs"
    elif types.is_dictionary(data_type):
        yield from _unreadable(pa.field(field.name, data_type.value_type), path)
    elif types.is_nested(data_type):
        for number in range(data_type.num_fields):
            child = data_type.field(number)
            yield from _unreadable(child, f"{path}.{child.name}")
    elif not _is_known(data_type):
        yield path, str(data_type)


def _is_known(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        data_type in _PLAIN
        or is_string(data_type)
        or types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_binary_view(data_type)
        or types.is_fixed_size_binary(data_type)
        or types.is_decimal128(data_type)
        or types.is_timestamp(data_type)
    )
