"""Builds Arrow arrays and scalars from Python values without `pa.array` and `pa.scalar`.

These load pandas if it is installed, which costs a quarter of a second and tens of megabytes in each driver
and executor process.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import pyarrow as pa

_CODES = {pa.int32(): "i", pa.int64(): "q", pa.float32(): "f", pa.float64(): "d"}


def numeric_array(values: Sequence[float], data_type: pa.DataType = pa.int64()) -> pa.Array:
    """
    Args:
        data_type: int32, int64, float32 or float64
    """
    return pa.Array.from_buffers(
        data_type, len(values), [None, pa.py_buffer(array(_CODES[data_type], values))]
    )


def numeric_scalar(value: float, data_type: pa.DataType = pa.int64()) -> pa.Scalar:
    return numeric_array([value], data_type)[0]


def string_array(values: Sequence[str | None], data_type: pa.DataType = pa.string()) -> pa.Array:
    """
    Args:
        data_type: string or large_string
    """
    encoded = [b"" if value is None else value.encode() for value in values]
    ends = accumulate(map(len, encoded), initial=0)
    offsets = array("q" if data_type == pa.large_string() else "i", ends)
    buffers = [validity(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(data_type, len(values), buffers)


def fixed_size_bytes(values: Sequence[bytes | None], width: int) -> pa.Array:
    joined = b"".join(bytes(width) if value is None else value for value in values)
    return pa.Array.from_buffers(pa.binary(width), len(values), [validity(values), pa.py_buffer(joined)])


def null_scalar(data_type: pa.DataType) -> pa.Scalar:
    return pa.nulls(1, data_type)[0]


def validity(values: Sequence[object | None]) -> pa.Buffer | None:
    """Validity bitmap: one bit per value, lowest bit first, zero for None; None if there are no nulls."""
    if all(value is not None for value in values):
        return None
    bits = "".join("0" if value is None else "1" for value in reversed(values))
    return pa.py_buffer(int(bits, 2).to_bytes((len(values) + 7) // 8, "little"))


VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
"""Spark's VARIANT as Spark hands it over."""


def is_variant(data_type: pa.DataType) -> bool:
    """Return True for the type of `VARIANT`, with its fields in any order."""
    if not pa.types.is_struct(data_type) or {field.name for field in data_type} != {"value", "metadata"}:
        return False
    return (data_type.field("metadata").metadata or {}).get(b"variant") == b"true"
