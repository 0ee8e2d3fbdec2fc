"""Converts Arrow rows to JSON objects, one for each row.

Numbers keep all digits, and have no more than they need. Decimals are strings. NaN and infinities, which JSON
does not have, are strings as in Spark's `to_json`. Timestamps are ISO 8601 with microseconds, in UTC with
`Z`, or without zone. Binary values are base64. NULL is `null`, at every level. docs/types.md has the table.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import compress
from operator import add
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import types

from ...committers.errors import SchemaMismatchError
from ..parquet.columns import is_list, is_string
from ..parquet.utf8 import check_utf8, has_strings
from .python_values import fewest_digits, python_values

Convert: TypeAlias = Callable[[Any], Any]
"""Converts a value that is not NULL to what `json.dumps` writes."""

_SAME = frozenset({pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.large_string()})


def check_json_schema(rows: pa.Schema, destination: str) -> None:
    """
    Raises:
        SchemaMismatchError: names the columns that JSON objects cannot hold, with a remedy for each.
    """
    problems = list(json_problems(rows))
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise SchemaMismatchError(f"These columns cannot be sent to {destination} as JSON:{lines}")


def json_problems(rows: pa.Schema) -> Iterator[str]:
    """Yield the columns that JSON objects cannot hold, with a remedy for each."""
    for field in rows:
        yield from _problems(field.type, field.name)


def check_values(rows: pa.RecordBatch) -> None:
    """Check that all values can be converted: strings are UTF-8, dates are in the years 1 to 9999.

    Raises:
        SchemaMismatchError: names the column.
    """
    strings = [number for number, field in enumerate(rows.schema) if has_strings(field.type)]
    check_utf8(
        [rows.column(number) for number in strings], [rows.schema.field(number) for number in strings], "JSON"
    )
    check_times(rows)


def check_times(rows: pa.RecordBatch) -> None:
    """
    Raises:
        SchemaMismatchError: names the column of a date or a timestamp outside of the years 1 to 9999.
    """
    for array, field in zip(rows.columns, rows.schema, strict=True):
        if _has_times(field.type):
            _to_python(array, field.name)


def json_objects(rows: pa.RecordBatch, left_out: Sequence[Collection[str]] = ()) -> list[bytes]:
    """One JSON object for each row, as UTF-8.

    Args:
        left_out: for each row, names of columns that its object does not have

    Raises:
        SchemaMismatchError: names the column of a value that cannot be converted.
    """
    check_values(rows)
    names = [json.dumps(name, ensure_ascii=False) for name in rows.schema.names]
    columns = [list(json_texts(array, field)) for array, field in zip(rows.columns, rows.schema, strict=True)]
    if any(left_out):
        fields = [f"{name}:" for name in names]
        kept = [[name not in some for name in rows.schema.names] for some in left_out]
        texts = [
            ",".join(compress(map(add, fields, values), which))
            for *values, which in zip(*columns, kept, strict=True)
        ]
        return [f"{{{text}}}".encode() for text in texts]
    heads = [f"{',' if number else '{'}{name}:" for number, name in enumerate(names)]
    return [
        ("".join([head + text for head, text in zip(heads, values, strict=True)]) + "}").encode()
        for values in zip(*columns, strict=True)
    ]


def json_values(array: pa.Array, name: str) -> list[Any]:
    """The values of a column as Python objects that `json.dumps` writes."""
    convert = column_converter(array.type)
    values = _to_python(array, name)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def json_texts(array: pa.Array, field: pa.Field) -> Iterator[str]:
    """The values of a column as JSON."""
    if types.is_integer(field.type):
        return ("null" if value is None else str(value) for value in array.to_pylist())
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
    return map(encode, json_values(array, field.name))


def column_converter(data_type: pa.DataType) -> Convert | None:
    """Return the `converter` of a column, whose values are those of `python_values`."""
    return _float if types.is_float32(data_type) else converter(data_type)


def converter(data_type: pa.DataType) -> Convert | None:
    """Return the conversion of a type inside of columns; None if its values are written as they are."""
    if data_type in _SAME:
        return None
    if types.is_float32(data_type):
        return _float32
    if types.is_floating(data_type):
        return _float
    if types.is_decimal(data_type):
        return _decimal
    if types.is_timestamp(data_type):
        return _utc if data_type.tz else _local
    if types.is_date(data_type):
        return date.isoformat
    if types.is_binary(data_type) or types.is_large_binary(data_type):
        return _base64
    if types.is_struct(data_type):
        inner = {field.name: converter(field.type) for field in data_type}
        return lambda value: {name: _converted(inner[name], one) for name, one in value.items()}
    if types.is_map(data_type):
        of_item = converter(data_type.item_type)
        return lambda value: {key: _converted(of_item, one) for key, one in value}
    of_element = converter(data_type.value_type)
    return lambda value: [_converted(of_element, one) for one in value]


def _converted(convert: Convert | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


def _float32(value: float) -> float | str:
    return _float(fewest_digits(value) if math.isfinite(value) else value)


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _utc(value: datetime) -> str:
    return _local(value) + "Z"


def _local(value: datetime) -> str:
    return value.isoformat(timespec="microseconds")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _to_python(array: pa.Array, name: str) -> list[Any]:
    try:
        return python_values(array)
    except (ValueError, OverflowError) as error:
        raise SchemaMismatchError(
            f"A value in {name} cannot be written ({error}). Dates and timestamps must be in the years "
            "1 to 9999. "
            "Filter these rows, or cast the column to STRING in the query."
        ) from None


def _has_times(data_type: pa.DataType) -> bool:
    if types.is_timestamp(data_type) or types.is_date(data_type):
        return True
    return any(_has_times(data_type.field(number).type) for number in range(data_type.num_fields))


def _problems(data_type: pa.DataType, path: str) -> Iterator[str]:
    if types.is_struct(data_type):
        for field in data_type:
            yield from _problems(field.type, f"{path}.{field.name}")
    elif types.is_map(data_type):
        if not is_string(data_type.key_type):
            yield (
                f"{path} is a map whose keys are {data_type.key_type}, and keys of JSON objects are "
                "strings: cast them, "
                "for example with transform_keys"
            )
        yield from _problems(data_type.item_type, f"{path}.value")
    elif is_list(data_type):
        yield from _problems(data_type.value_type, f"{path}.element")
    elif not (
        data_type in _SAME
        or types.is_floating(data_type)
        or types.is_decimal(data_type)
        or types.is_timestamp(data_type)
        or types.is_date(data_type)
        or types.is_binary(data_type)
        or types.is_large_binary(data_type)
    ):
        yield f"{path} is {data_type}: cast it to STRING"
