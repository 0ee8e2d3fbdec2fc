"""Values that conditions compare: one Python type for each kind of column.

| column | value |
|---|---|
| integers | int |
| decimals | Decimal |
| float, double | float |
| string | str |
| binary | bytes |
| boolean | int, 0 or 1 |
| date | int, days since 1970 |
| timestamps | int, microseconds since 1970 |

Bounds of files and literals of conditions are converted to them, and compared in Python; rows are compared
by Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from ..committers.arrow_values import fixed_size_bytes, numeric_array, string_array
from ..writers.parquet.columns import reach

Path: TypeAlias = tuple[str, ...]
"""Names of a column, from the top level through structs."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


def is_comparable(data_type: pa.DataType) -> bool:
    """Return True if conditions can compare values of the type."""
    types = pa.types
    return bool(
        types.is_signed_integer(data_type)
        or types.is_floating(data_type)
        or types.is_boolean(data_type)
        or types.is_decimal128(data_type)
        or types.is_string(data_type)
        or types.is_binary(data_type)
        or types.is_date32(data_type)
        or (types.is_timestamp(data_type) and data_type.unit == "us")
    )


def comparable(rows: pa.RecordBatch, path: Path) -> pa.Array:
    """Return the values of a column as the type that is compared."""
    column = reach(rows.column(path[0]), path[1:])
    types = pa.types
    if types.is_timestamp(column.type):
        return column.view(pa.int64())
    if types.is_date32(column.type):
        return column.view(pa.int32())
    if types.is_boolean(column.type) or types.is_signed_integer(column.type):
        return column.cast(pa.int64()) if column.type != pa.int64() else column
    return column.cast(pa.float64()) if types.is_floating(column.type) else column


def scalar_of(value: Any, data_type: pa.DataType) -> pa.Scalar:
    """Return a value as a scalar of a type that `comparable` returns."""
    if isinstance(value, int):
        return numeric_array([value], data_type)[0]
    if isinstance(value, float):
        return numeric_array([value], pa.float64())[0]
    if isinstance(value, Decimal):
        return string_array([format(value, "f")])[0].cast(data_type)
    if isinstance(value, bytes):
        return fixed_size_bytes([value], len(value))[0].cast(pa.binary()) if value else _EMPTY
    return string_array([value])[0]


def array_of(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Return values as an array of a type that `comparable` returns."""
    if pa.types.is_string(data_type):
        return string_array(list(values))
    return pa.concat_arrays([pa.repeat(scalar_of(value, data_type), 1) for value in values])


_EMPTY = string_array([""])[0].cast(pa.binary())


def days(value: date) -> int:
    return (value - date(1970, 1, 1)).days


def microseconds(value: datetime) -> int:
    """
    Args:
        value: without a zone it is in UTC
    """
    aware = value if value.tzinfo is not None else value.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) // _MICROSECOND


def parse_date(text: str) -> int:
    """
    Raises:
        ValueError: it is not a date.
    """
    return days(date.fromisoformat(text.strip()))


def parse_timestamp(text: str, *, has_zone: bool) -> int:
    """Parse a timestamp in ISO form.

    Args:
        has_zone: the column is TIMESTAMP; otherwise TIMESTAMP_NTZ, and the text must not have a zone

    Raises:
        ValueError: it is not a timestamp.
    """
    text = text.strip()
    text = f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text
    value = datetime.fromisoformat(_six_digits(text)) if len(text) > 10 else _midnight(text)
    if value.tzinfo is not None and not has_zone:
        raise ValueError("the column has no time zone")
    return microseconds(value)


def _midnight(text: str) -> datetime:
    return datetime.combine(date.fromisoformat(text), time(0))


def _six_digits(text: str) -> str:
    """Python 3.10 parses only fractions of three or six digits."""
    whole, dot, rest = text.partition(".")
    if not dot:
        return text
    digits = rest[: next((place for place, char in enumerate(rest) if not char.isdigit()), len(rest))]
    if len(digits) > 6 and digits[6:].strip("0"):
        raise ValueError("it has more than microseconds")
    return f"{whole}.{digits[:6].ljust(6, '0')}{rest[len(digits) :]}"


def integer_range(data_type: pa.DataType) -> tuple[int, int]:
    """Return the lowest and the highest value of an integer type."""
    highest = 2 ** (data_type.bit_width - 1) - 1
    return -highest - 1, highest


def struct_field(fields: Sequence[pa.Field], path: Sequence[str]) -> tuple[Path, pa.DataType] | None:
    """Return the path of a column with the names of the schema, and its type; None if there is none.

    Args:
        path: names in any case
    """
    found: list[str] = []
    data_type = None
    for name in path:
        alike = [one for one in fields if one.name == name] or [
            one for one in fields if one.name.lower() == name.lower()
        ]
        if len(alike) != 1:
            return None
        found.append(alike[0].name)
        data_type = alike[0].type
        fields = list(data_type) if pa.types.is_struct(data_type) else []
    return None if data_type is None else (tuple(found), data_type)
