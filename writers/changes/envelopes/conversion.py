"""Converts values of messages to the types of the table's columns.

A value has the type that JSON or Avro gives it. A *logical type* tells what it stands for: the name of a type
of Kafka Connect or Debezium, from the schema of the message or from the option `valueColumns`. No unit and no
encoding is guessed. Arrow converts whole columns.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.arrow_values import numeric_scalar, validity
from ...parquet.columns import is_binary, is_string

UNITS: Mapping[str, str] = {
    "timestamp": "ms",
    "microtimestamp": "us",
    "nanotimestamp": "ns",
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
}
"""Units of the logical types for points in time that are numbers."""

_UNSCALED_BYTES_MAX = 16
_ZERO, _ONE = numeric_scalar(0), numeric_scalar(1)
_ZONE = r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$"
_NANOSECONDS = r"(\.\d{6})\d+"


@dataclass(frozen=True, slots=True)
class Logical:
    """A logical type."""

    name: str = ""
    """The last part of its name, in lower case: `microtimestamp`, `decimal`; empty: unknown."""
    scale: int | None = None
    """Of a decimal."""

    @classmethod
    def of(cls, name: str | None, scale: object = None) -> Logical:
        """
        Args:
            name: such as `io.debezium.time.MicroTimestamp`
        """
        digits = str(scale)
        return cls((name or "").rpartition(".")[2].lower(), int(digits) if digits.isdigit() else None)


UNKNOWN = Logical()


def convert(values: pa.Array, target: pa.DataType, logical: Logical = UNKNOWN) -> pa.Array:
    """Return values that are no lists, maps or structs in the type of a column.

    Raises:
        ValueError: a value does not fit. Errors of Arrow are ValueErrors, too.
    """
    if values.type == target:
        return values
    if values.null_count == len(values):
        return pa.nulls(len(values), target)
    for fits, conversion in _CONVERSIONS:
        if fits(target):
            return conversion(values, target, logical)
    raise ValueError(f"a {values.type} cannot become {target}")


def _to_text(values: pa.Array, target: pa.DataType, _: Logical) -> pa.Array:
    return values.cast(target)


def _to_boolean(values: pa.Array, target: pa.DataType, _: Logical) -> pa.Array:
    if pa.types.is_integer(values.type):
        if pc.any(pc.invert(pc.or_(pc.equal(values, _ZERO), pc.equal(values, _ONE)))).as_py():
            raise ValueError("a number other than 0 and 1 is no boolean")
    elif not is_string(values.type):
        raise ValueError(f"a {values.type} is no boolean")
    return values.cast(target)


def _to_integer(values: pa.Array, target: pa.DataType, _: Logical) -> pa.Array:
    return values.cast(target)


def _to_floating(values: pa.Array, target: pa.DataType, _: Logical) -> pa.Array:
    """Numbers are rounded, and never become infinite."""
    numbers = values.cast(pa.float64(), safe=not pa.types.is_integer(values.type))
    rounded = numbers.cast(target)
    if pc.any(pc.and_(pc.is_inf(rounded), pc.invert(pc.is_inf(numbers)))).as_py():
        raise ValueError(f"a number is too large for {target}")
    return rounded


def _to_decimal(values: pa.Array, target: pa.DataType, logical: Logical) -> pa.Array:
    if logical.name == "decimal" or is_binary(values.type):
        scale = target.scale if logical.scale is None else logical.scale
        return _from_unscaled(_decoded(values, UNKNOWN), scale).cast(target)
    if pa.types.is_decimal(values.type):
        return values.cast(target)
    return values.cast(pa.string()).cast(target)  # a number by its digits, so that none is lost


def _from_unscaled(values: Sequence[bytes | None], scale: int) -> pa.Array:
    """
    Args:
        values: unscaled values, big-endian in two's complement
    """
    if any(value is not None and len(value) > _UNSCALED_BYTES_MAX for value in values):
        raise ValueError(f"a decimal has more than {8 * _UNSCALED_BYTES_MAX} bits")
    numbers = [b"" if value is None else value for value in values]
    joined = b"".join(
        [
            int.from_bytes(value, "big", signed=True).to_bytes(_UNSCALED_BYTES_MAX, "little", signed=True)
            for value in numbers
        ]
    )
    data_type = pa.decimal128(38, scale)
    return pa.Array.from_buffers(data_type, len(values), [validity(values), pa.py_buffer(joined)])


def _to_date(values: pa.Array, target: pa.DataType, logical: Logical) -> pa.Array:
    if logical.name in UNITS:
        return _to_timestamp(values, pa.timestamp("us"), logical).cast(target)
    if is_string(values.type):
        return pc.utf8_rtrim(values, characters="Z").cast(target)
    return values.cast(pa.int32()).cast(target)


def _to_timestamp(values: pa.Array, target: pa.DataType, logical: Logical) -> pa.Array:
    """Points in time have microseconds: further digits are cut off. A text without a zone is in UTC."""
    if is_string(values.type):
        return _from_texts(pc.replace_substring_regex(values, _NANOSECONDS, r"\1")).cast(target)
    unit = UNITS.get(logical.name)
    if unit is None:
        raise ValueError(
            "a number is no point in time unless its unit is known: give it in valueColumns, such as "
            "TIMESTAMP COMMENT 'MicroTimestamp' (or Timestamp for milliseconds, NanoTimestamp)"
        )
    numbers = values.cast(pa.int64())
    if unit == "ns":
        below = pc.divide(pc.subtract(numbers, _THOUSAND_LESS_ONE), _THOUSAND)  # it rounds towards zero
        numbers, unit = pc.if_else(pc.less(numbers, _ZERO), below, pc.divide(numbers, _THOUSAND)), "us"
    return numbers.cast(pa.timestamp(unit)).cast(pa.timestamp("us")).cast(target)


_THOUSAND, _THOUSAND_LESS_ONE = numeric_scalar(1000), numeric_scalar(999)


def _from_texts(texts: pa.Array) -> pa.Array:
    """Return points in time without a zone, in UTC."""
    has_zone = pc.match_substring_regex(texts, _ZONE)
    none = pa.nulls(len(texts), texts.type)
    zoned = pc.if_else(has_zone, texts, none).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    return pc.coalesce(zoned, pc.if_else(has_zone, none, texts).cast(pa.timestamp("us")))


def _to_binary(values: pa.Array, target: pa.DataType, logical: Logical) -> pa.Array:
    if is_binary(values.type):
        return values.cast(target)
    return binary_array(_decoded(values, logical)).cast(target)


def _decoded(values: pa.Array, logical: Logical) -> Sequence[bytes | None]:
    if is_binary(values.type):
        return values.to_pylist()  # type: ignore[no-any-return]
    if not is_string(values.type):
        raise ValueError(f"a {values.type} has no bytes")
    decode: Callable[[str], bytes] = bytes.fromhex if logical.name == "hex" else _from_base64
    return [None if text is None else decode(text) for text in values.to_pylist()]


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


def binary_array(values: Sequence[bytes | None]) -> pa.Array:
    present = [value or b"" for value in values]
    offsets = pa.py_buffer(array("i", accumulate(map(len, present), initial=0)))
    buffers = [validity(values), offsets, pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


_Conversion: TypeAlias = Callable[[pa.Array, pa.DataType, Logical], pa.Array]
_CONVERSIONS: Sequence[tuple[Callable[[pa.DataType], bool], _Conversion]] = (
    (is_string, _to_text),
    (pa.types.is_boolean, _to_boolean),
    (pa.types.is_integer, _to_integer),
    (pa.types.is_floating, _to_floating),
    (pa.types.is_decimal, _to_decimal),
    (pa.types.is_date, _to_date),
    (pa.types.is_timestamp, _to_timestamp),
    (is_binary, _to_binary),
)
