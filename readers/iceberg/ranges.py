"""What the manifests of an Iceberg table say of the values in a file: bounds, NULLs, NaN.

Format: Iceberg's specification, "Manifests" and "Appendix D: Single-value serialization".
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from ..predicates import ONLY_NULL, Ranges, ValueRange
from ..values import Path

_NUMBERS = {4: "<i", 8: "<q"}
_FLOATS = {4: "<f", 8: "<d"}


class FileRanges:
    """Ranges of the columns of a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._columns: dict[Path, tuple[int, IcebergType]] = {}

    def of(self, file: DataFile) -> Ranges:
        """Return what is known of the columns in a file."""

        def known(path: Path) -> ValueRange:
            if path not in self._columns:
                field = self._schema.find_field(".".join(path))
                self._columns[path] = field.field_id, field.field_type
            return _range(file, *self._columns[path], is_nested=len(path) > 1)

        return known


def _range(file: DataFile, number: int, kind: IcebergType, *, is_nested: bool) -> ValueRange:
    nulls = (file.null_value_counts or {}).get(number)
    if nulls == file.record_count and not is_nested:
        return ONLY_NULL
    is_float = isinstance(kind, FloatType | DoubleType)
    may_be_nan = is_float and (file.nan_value_counts or {}).get(number) != 0
    low, high = (
        _bound((bounds or {}).get(number), kind) for bounds in (file.lower_bounds, file.upper_bounds)
    )
    may_be_null = is_nested or nulls != 0
    return ValueRange(low, high, may_be_null=may_be_null, may_be_nan=may_be_nan)


def _bound(value: bytes | None, kind: IcebergType) -> Any:
    """Return a bound as conditions compare it; None if it is unknown. That of a file that is older than a
    wider type has the length of the old type.
    """
    if value is None:
        return None
    try:
        if isinstance(kind, StringType):
            return value.decode()
        if isinstance(kind, BinaryType):
            return value
        if isinstance(kind, BooleanType):
            return int(value != b"\x00")
        if isinstance(kind, FloatType | DoubleType):
            (number,) = struct.unpack(_FLOATS[len(value)], value)
            return number if number == number else None
        if isinstance(kind, IntegerType | LongType | DateType | TimestampType | TimestamptzType):
            return struct.unpack(_NUMBERS[len(value)], value)[0]
        if isinstance(kind, DecimalType):
            unscaled = int.from_bytes(value, "big", signed=True)
            return Decimal(unscaled).scaleb(-kind.scale)
    except (KeyError, struct.error, UnicodeDecodeError):
        return None
    return None
