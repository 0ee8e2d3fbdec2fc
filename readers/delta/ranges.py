"""What the log of a Delta table says of the values in a file: partition values, bounds, NULLs.

Statistics: `PROTOCOL.md` of Delta, "Per-file Statistics".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ...committers.delta.log_entry import ActiveFile
from ..predicates import ONLY_NULL, UNKNOWN, Ranges, ValueRange
from ..values import Path, comparable, parse_date, parse_timestamp, struct_field
from .files import partition_value

_MILLISECOND = 1000
"""In microseconds. Engines round the bounds of timestamps to milliseconds, some of them down."""
_EXACT_DIGITS = 15
"""Decimals with more digits were written as floating numbers by some writers."""


class PartitionRanges:
    """Ranges of partition columns; each value is converted once.

    Args:
        types: of the columns
    """

    def __init__(self, types: pa.Schema, table_uri: str) -> None:
        self._types = types
        self._table_uri = table_uri
        self._known: dict[tuple[str, str | None], ValueRange] = {}

    def of(self, path: Path, values: Mapping[str, str | None]) -> ValueRange:
        name = path[0]
        text = values.get(name)
        found = self._known.get((name, text))
        if found is None:
            data_type = self._types.field(name).type
            found = _only(partition_value(name, text, data_type, self._table_uri))
            self._known[name, text] = found
        return found


def _only(value: pa.Scalar) -> ValueRange:
    """Return the range of one value."""
    if not value.is_valid:
        return ONLY_NULL
    rows = pa.RecordBatch.from_arrays([pa.repeat(value, 1)], names=["value"])
    found = comparable(rows, ("value",))[0].as_py()
    if found != found:
        return ValueRange(may_be_null=False)
    return ValueRange(found, found, may_be_null=False, may_be_nan=False)


def file_ranges(file: ActiveFile, types: pa.Schema, partitions: PartitionRanges) -> Ranges:
    """Return what is known of the columns in a file. Statistics are parsed when they are first needed."""
    parsed: list[Mapping[str, Any]] = []

    def known(path: Path) -> ValueRange:
        if path[0] in file.partition_values:
            return partitions.of(path, file.partition_values)
        if not parsed:
            parsed.append(_parsed(file.stats))
        found = struct_field(list(types), path)
        return UNKNOWN if found is None else _range(parsed[0], path, found[1])

    return known


def _parsed(stats: str) -> Mapping[str, Any]:
    try:
        found = json.loads(stats or "{}", parse_float=Decimal)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _range(stats: Mapping[str, Any], path: Path, data_type: pa.DataType) -> ValueRange:
    nulls, rows = _at(stats.get("nullCount"), path), stats.get("numRecords")
    if isinstance(nulls, int) and isinstance(rows, int) and nulls == rows and len(path) == 1:
        return ONLY_NULL
    low, high = (_bound(_at(stats.get(name), path), data_type) for name in ("minValues", "maxValues"))
    if high is not None and pa.types.is_timestamp(data_type):
        high += _MILLISECOND
    if low is None or high is None:
        low = high = None
    may_be_null = len(path) > 1 or nulls != 0
    return ValueRange(low, high, may_be_null=may_be_null, may_be_nan=pa.types.is_floating(data_type))


def _at(values: Any, path: Path) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _rounded(value: float, data_type: pa.DataType) -> float:
    """Return the value that the column has: some writers log a float by its shortest text, and 0.1 is less
    than the float that it stands for.
    """
    if not pa.types.is_float32(data_type):
        return value
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _bound(value: Any, data_type: pa.DataType) -> Any:
    """Return a bound as conditions compare it; None if it is unknown or not exact."""
    types = pa.types
    try:
        if isinstance(value, bool):
            return int(value) if types.is_boolean(data_type) else None
        if types.is_signed_integer(data_type):
            return value if isinstance(value, int) else None
        if types.is_floating(data_type):
            found = float(value) if isinstance(value, int | Decimal) else None
            return None if found is None or found != found else _rounded(found, data_type)
        if types.is_decimal128(data_type):
            is_exact = isinstance(value, int | Decimal) and data_type.precision <= _EXACT_DIGITS
            return Decimal(value) if is_exact else None
        if not isinstance(value, str):
            return None
        if types.is_string(data_type):
            return value
        if types.is_date32(data_type):
            return parse_date(value)
        if types.is_timestamp(data_type):
            return parse_timestamp(value, has_zone=True)
    except (ValueError, OverflowError):
        return None
    return None
