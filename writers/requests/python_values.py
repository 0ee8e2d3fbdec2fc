"""Converts Arrow arrays to Python objects, for texts that are made of them."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
from pyarrow import types

from ..time_zones import relabelled, with_zone

_DIGITS_MAX = 9
"""With so many digits, each number of 32 bits has a text of its own."""
_FLOAT = struct.Struct("f")


def python_values(array: pa.Array) -> list[Any]:
    """Return the values of an array. Timestamps have no zone: those of a type with a zone are in UTC.

    So the time zone database is not needed, which small containers do not have, and which takes most of the
    time. Numbers of 32 bits at the top level have the fewest digits that stand for them.

    Raises:
        ValueError: Python does not have the value, such as a date after the year 9999.
        OverflowError: likewise.
    """
    if types.is_float32(array.type):
        array = array.cast(pa.string()).cast(pa.float64())
    values: list[Any] = relabelled(array, with_zone(array.type, None)).to_pylist()
    return values


def fewest_digits(value: float) -> float:
    """Return the number with the fewest digits that is the same in 32 bits: 0.1 for 0.10000000149011612."""
    for digits in range(6, _DIGITS_MAX):
        shorter = float(f"{value:.{digits}g}")
        if _FLOAT.unpack(_FLOAT.pack(shorter))[0] == value:
            return shorter
    return float(f"{value:.{_DIGITS_MAX}g}")
