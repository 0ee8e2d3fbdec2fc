"""Bounds of string and binary columns, which may be truncated: a bound must be valid, but need not be a
value.

Also bounds of floating-point columns, which the Parquet footer does not have.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_LAST_CHARACTER = chr(0x10FFFF)


FOOTER_LENGTH_MAX = 4096
"""Arrow leaves longer values, in bytes, out of the Parquet footer."""


class Extremes:
    """The least and greatest string or binary value of a file's column.

    Taken from the footer, or collected while the file is written if the footer leaves them out. Strings are
    compared by code points, which equals the order of their bytes; binary values are compared as unsigned
    bytes.
    """

    def __init__(self) -> None:
        self._found: list[Any] = []

    def add(self, arrays: Iterable[pa.Array]) -> None:
        """Called with values that are about to be written."""
        chunks = list(arrays)
        values = pa.chunked_array(chunks) if chunks else pa.nulls(0, pa.string())
        if (pc.max(pc.binary_length(values)).as_py() or 0) > FOOTER_LENGTH_MAX:
            found = [*self._found, *pc.min_max(values).as_py().values()]
            self._found = [min(found), max(found)]  # do not keep those of each row group: they are long

    def bounds(self, chunks: Iterable[pq.Statistics]) -> tuple[Any, Any]:
        """(lower, upper) of the closed file; None without values."""
        in_footer = [chunk for chunk in chunks if chunk.has_min_max]
        found = [*self._found, *(chunk.min for chunk in in_footer), *(chunk.max for chunk in in_footer)]
        return (min(found), max(found)) if found else (None, None)


class FloatExtremes:
    """Counts and extremes of a floating-point column, collected while the file is written."""

    def __init__(self) -> None:
        self.nulls = self.nans = 0
        self._found: list[float] = []

    def add(self, arrays: Iterable[pa.Array]) -> None:
        """Called with values that are about to be written."""
        for array in arrays:
            self.nulls += array.null_count
            extremes = _extremes(array)
            if any(map(math.isnan, extremes)):
                is_nan = pc.is_nan(array)
                self.nans += pc.sum(is_nan).as_py()
                extremes = _extremes(array.filter(pc.invert(is_nan)))
            if extremes:
                self._found = [min(*extremes, *self._found), max(*extremes, *self._found)]

    @property
    def has_values(self) -> bool:
        return bool(self._found or self.nans)

    @property
    def has_only_nans(self) -> bool:
        """True if there are NaNs, and no numbers."""
        return bool(self.nans and not self._found)

    @property
    def bounds(self) -> tuple[float, float] | tuple[None, None]:
        """(lower, upper), ignoring NaN; None without numbers. A zero is -0.0 as lower and 0.0 as upper
        bound.
        """
        if not self._found:
            return None, None
        lower, upper = self._found
        return lower or -0.0, upper or 0.0


_STRUCT_CODES = {16: ("H", "e"), 32: ("I", "f"), 64: ("Q", "d")}
"""By width in bits: codes of unsigned and of floating-point numbers, see `struct`."""


def _extremes(array: pa.Array) -> list[float]:
    """[least, greatest]; one of them is NaN if there is a NaN. Empty without values.

    Compares bits, which Arrow does ten times faster. As signed integers, numbers from 0.0 up are in order,
    with NaN above them. As unsigned integers, numbers from -0.0 down are above all others, in reverse order.
    """
    size = array.type.bit_width
    signed, unsigned = (pc.min_max(array.view(f"{data_type}{size}")).as_py() for data_type in ("int", "uint"))
    if signed["min"] is None:
        return []
    least = unsigned["max"] if signed["min"] < 0 else unsigned["min"]
    greatest = signed["max"] if signed["max"] >= 0 else unsigned["min"]
    unsigned_code, float_code = _STRUCT_CODES[size]
    return list(struct.unpack(f"=2{float_code}", struct.pack(f"=2{unsigned_code}", least, greatest)))


def text_upper_bound(text: str, characters_max: int) -> str | None:
    """A string of at most this many characters that is not less than `text`; None if there is none.

    It is the prefix in which the last character that has a successor is replaced by that successor. The lower
    bound is simply the prefix, which is never greater than the whole.
    """
    if len(text) <= characters_max:
        return text
    prefix = text[:characters_max].rstrip(_LAST_CHARACTER)
    if not prefix:
        return None
    successor = ord(prefix[-1]) + 1
    if 0xD800 <= successor <= 0xDFFF:
        successor = 0xE000
    return prefix[:-1] + chr(successor)


def bytes_upper_bound(data: bytes, length_max: int) -> bytes | None:
    """The same for binary values."""
    if len(data) <= length_max:
        return data
    prefix = data[:length_max].rstrip(b"\xff")
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None
