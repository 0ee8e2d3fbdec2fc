"""Values of Iceberg's metadata as conditions compare them, see `readers.values`.

Format: Iceberg's specification, "Appendix D: Single-value serialization".
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

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

Decode: TypeAlias = Callable[[bytes], Any]

_INTEGERS = {4: "<i", 8: "<q"}
_TIMES = {8: "<q"}
_FLOATS = {4: "<f", 8: "<d"}


def decoder(kind: IcebergType) -> Decode:
    """Return what decodes a bound of a column, to None if it is not understood. A bound that is older than a
    wider type has the length of the old type.
    """
    decode = _decoder(kind)

    def decode_if_known(value: bytes) -> Any:
        try:
            return decode(value)
        except (KeyError, struct.error, UnicodeDecodeError):
            return None

    return decode_if_known


def _decoder(kind: IcebergType) -> Decode:
    if isinstance(kind, StringType):
        return bytes.decode
    if isinstance(kind, BinaryType):
        return bytes
    if isinstance(kind, BooleanType):
        return lambda value: int(value != b"\x00")
    if isinstance(kind, FloatType | DoubleType):
        return lambda value: without_nan(struct.unpack(_FLOATS[len(value)], value)[0])
    if isinstance(kind, IntegerType | LongType | DateType):
        return lambda value: struct.unpack(_INTEGERS[len(value)], value)[0]
    if isinstance(kind, TimestampType | TimestamptzType):
        return lambda value: struct.unpack(_TIMES[len(value)], value)[0]
    if isinstance(kind, DecimalType):
        return lambda value: Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-kind.scale)
    return lambda value: None


def without_nan(value: float) -> float | None:
    return value if value == value else None
