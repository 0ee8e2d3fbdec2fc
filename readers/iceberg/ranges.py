"""What the manifests of an Iceberg table say of the values in a file: bounds, NULLs, NaN.

Format: Iceberg's specification, "Manifests" and "Appendix D: Single-value serialization".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

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

ValueT = TypeVar("ValueT")

_NUMBERS = {4: "<i", 8: "<q"}
_FLOATS = {4: "<f", 8: "<d"}


class FileRanges:
    """Ranges of the columns of a schema."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._columns: dict[Path, _Column] = {}

    def of(self, file: DataFile) -> Ranges:
        """Return what is known of the columns in a file."""

        def known(path: Path) -> ValueRange:
            column = self._columns.get(path)
            if column is None:
                field = self._schema.find_field(".".join(path))
                column = self._columns[path] = _Column(field.field_id, field.field_type, len(path) > 1)
            return column.range(file)

        return known


class _Column:
    """One that is compared. Planning asks for its range in each file of the table."""

    def __init__(self, number: int, kind: IcebergType, is_nested: bool) -> None:
        self._number, self._is_nested = number, is_nested
        self._is_float = isinstance(kind, FloatType | DoubleType)
        self._decode = _decoder(kind)

    def range(self, file: DataFile) -> ValueRange:
        nulls = self._of(file.null_value_counts)
        if nulls == file.record_count and not self._is_nested:
            return ONLY_NULL
        return ValueRange(
            self._bound(file.lower_bounds),
            self._bound(file.upper_bounds),
            may_be_null=self._is_nested or nulls != 0,
            may_be_nan=self._is_float and self._of(file.nan_value_counts) != 0,
        )

    def _of(self, values: Mapping[int, ValueT] | None) -> ValueT | None:
        return None if values is None else values.get(self._number)

    def _bound(self, bounds: Mapping[int, bytes] | None) -> Any:
        """Return a bound as conditions compare it; None if it is unknown. That of a file that is older than a
        wider type has the length of the old type.
        """
        value = self._of(bounds)
        try:
            return None if value is None else self._decode(value)
        except (KeyError, struct.error, UnicodeDecodeError):
            return None


def _decoder(kind: IcebergType) -> Callable[[bytes], Any]:
    if isinstance(kind, StringType):
        return bytes.decode
    if isinstance(kind, BinaryType):
        return bytes
    if isinstance(kind, BooleanType):
        return lambda value: int(value != b"\x00")
    if isinstance(kind, FloatType | DoubleType):
        return _float
    if isinstance(kind, IntegerType | LongType | DateType | TimestampType | TimestamptzType):
        return lambda value: struct.unpack(_NUMBERS[len(value)], value)[0]
    if isinstance(kind, DecimalType):
        return lambda value: Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-kind.scale)
    return lambda value: None


def _float(value: bytes) -> float | None:
    (number,) = struct.unpack(_FLOATS[len(value)], value)
    return number if number == number else None
