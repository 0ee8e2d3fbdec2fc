"""What the catalog of a DuckLake tells of the values in a data file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ..predicates import ONLY_NULL, UNKNOWN, Ranges, ValueRange
from ..values import Path, parse_date, parse_timestamp

_HIGHEST = chr(0x10FFFF)


def file_ranges(stats: Mapping[str, Sequence[Any]], rows: int, types: pa.Schema) -> Ranges:
    """
    Args:
        stats: of columns at the top level: the number of NULLs, the lowest and the highest value as texts
        rows: in the file
        types: of the columns in the condition
    """

    def known(path: Path) -> ValueRange:
        found = stats.get(path[0]) if len(path) == 1 else None
        return UNKNOWN if found is None else _range(found, rows, types.field(path[0]).type)

    return known


def _range(stats: Sequence[Any], rows: int, data_type: pa.DataType) -> ValueRange:
    nulls, low, high = stats
    if nulls is not None and nulls == rows:
        return ONLY_NULL
    bounds = (_bound(low, data_type), _bound(high, data_type))
    if pa.types.is_string(data_type) and bounds[1] is not None:
        bounds = (bounds[0], bounds[1] + _HIGHEST)  # it may be cut off
    return ValueRange(*bounds, may_be_null=nulls != 0, may_be_nan=pa.types.is_floating(data_type))


def _bound(text: Any, data_type: pa.DataType) -> Any:
    """Return a bound as conditions compare it; None if it is unknown."""
    types = pa.types
    if text is None:
        return None
    try:
        if types.is_boolean(data_type):
            return {"true": 1, "false": 0, "1": 1, "0": 0}.get(str(text).lower())
        if types.is_signed_integer(data_type):
            return int(text)
        if types.is_float64(data_type):
            return None if math.isnan(float(text)) else float(text)
        if types.is_decimal128(data_type):
            return Decimal(text)
        if types.is_string(data_type):
            return str(text)
        if types.is_date32(data_type):
            return parse_date(text)
        if types.is_timestamp(data_type):
            return _moment(str(text), has_zone=data_type.tz is not None)
    except (ValueError, OverflowError, ArithmeticError):
        return None
    return None


def _moment(text: str, *, has_zone: bool) -> int:
    """Parse `2026-11-29 10:00:00.5+00`."""
    is_short = has_zone and text[-3:-2] in ("+", "-")
    return parse_timestamp(f"{text}:00" if is_short else text, has_zone=has_zone)
