"""Converts Arrow rows to DynamoDB items. docs/types.md has the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import types

from ...committers.errors import SchemaMismatchError
from ..requests.json_rows import check_values, converter
from ..requests.python_values import fewest_digits, python_values

Attribute: TypeAlias = "dict[str, Any]"
"""A value with its type, such as `{"N": "1"}`."""
Convert: TypeAlias = Callable[[Any], Attribute]

NULL: Attribute = {"NULL": True}
_SMALLEST, _LARGEST = 1e-130, 9.99e125
"""Of the numbers that DynamoDB has, beside 0."""


def key_type(data_type: pa.DataType) -> str | None:
    """Return the type of a key attribute; None if the column cannot be a key."""
    if types.is_integer(data_type) or types.is_floating(data_type) or types.is_decimal(data_type):
        return "N"
    if types.is_binary(data_type) or types.is_large_binary(data_type):
        return "B"
    is_text = types.is_string(data_type) or types.is_large_string(data_type)
    return "S" if is_text or types.is_timestamp(data_type) or types.is_date(data_type) else None


def items_of(rows: pa.RecordBatch, keys: Sequence[str]) -> list[dict[str, Attribute]]:
    """Return one item for each row. A column that is NULL is no attribute of the item.

    Raises:
        SchemaMismatchError: names the column of a value that DynamoDB cannot hold, or that is no key.
    """
    check_values(rows)
    items: list[dict[str, Attribute]] = [{} for _ in range(rows.num_rows)]
    for array, field in zip(rows.columns, rows.schema, strict=True):
        convert = _float if types.is_float32(field.type) else _converter(field.type)
        for item, value in zip(items, python_values(array), strict=True):
            if value is None:
                continue
            try:
                item[field.name] = convert(value)
            except ValueError as error:
                raise SchemaMismatchError(
                    f"A value in {field.name} cannot be sent to DynamoDB: {error}. Filter these rows, or "
                    "cast the column to STRING in the query."
                ) from None
    for key in keys:
        if any(item.get(key) in (None, {"S": ""}, {"B": b""}) for item in items):
            raise SchemaMismatchError(
                f"A row has NULL or an empty value in the column {key!r}, which is a key of the table. "
                "Filter these rows, or give them a value."
            )
    return items


def key_of(item: Mapping[str, Attribute], keys: Sequence[str]) -> Hashable:
    """Return the key of an item. Numbers are compared as numbers: the service may write them differently."""
    return tuple(_comparable(item[key]) for key in keys)


def size_of(item: Mapping[str, Attribute]) -> int:
    """Return the size of an item in bytes, by the rules for the limit of 400 KB; numbers are rounded up."""
    return sum(len(name.encode()) + _size(value) for name, value in item.items())


def _comparable(value: Attribute) -> Hashable:
    ((kind, content),) = value.items()
    return Decimal(content) if kind == "N" else bytes(content) if kind == "B" else str(content)


def _size(value: Attribute) -> int:
    ((kind, content),) = value.items()
    if kind == "S":
        return len(content.encode())
    if kind == "N":
        return min(len(content) // 2 + 2, 21)
    if kind == "B":
        return len(content)
    if kind == "L":
        return 3 + sum(1 + _size(one) for one in content)
    if kind == "M":
        return 3 + sum(1 + len(name.encode()) + _size(one) for name, one in content.items())
    return 1


def _converter(data_type: pa.DataType) -> Convert:
    if types.is_boolean(data_type):
        return lambda value: {"BOOL": value}
    if types.is_integer(data_type):
        return lambda value: {"N": str(value)}
    if types.is_float32(data_type):
        return _float32
    if types.is_floating(data_type):
        return _float
    if types.is_decimal(data_type):
        return lambda value: {"N": format(value, "f")}
    if types.is_binary(data_type) or types.is_large_binary(data_type):
        return lambda value: {"B": value}
    if types.is_struct(data_type):
        inner = {field.name: _converter(field.type) for field in data_type}
        return lambda value: {"M": {name: _nested(inner[name], one) for name, one in value.items()}}
    if types.is_map(data_type):
        of_item = _converter(data_type.item_type)
        return lambda value: {"M": {name: _nested(of_item, one) for name, one in value}}
    if types.is_nested(data_type):
        of_element = _converter(data_type.value_type)
        return lambda value: {"L": [_nested(of_element, one) for one in value]}
    as_text = converter(data_type) or str
    return lambda value: {"S": as_text(value)}


def _nested(convert: Convert, value: Any) -> Attribute:
    return NULL if value is None else convert(value)


def _float32(value: float) -> Attribute:
    return _float(fewest_digits(value) if math.isfinite(value) else value)


def _float(value: float) -> Attribute:
    """
    Raises:
        ValueError: DynamoDB does not have the number.
    """
    if value != 0 and not _SMALLEST <= abs(value) <= _LARGEST:
        raise ValueError(f"numbers are from 1E-130 to 9.99E+125, and {value} is not")
    return {"N": repr(value)}
