"""Postgres' binary form of `numeric`: digits to the base 10,000. Executors only.

A value is the number of its digits, the exponent of the first one (`weight`), its sign, the number of decimal
places (`dscale`), and the digits, all of two bytes. `numeric_recv` removes zeros at both ends, so all values
of a batch can have the same number of digits.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...committers.errors import SchemaMismatchError

Fixed: TypeAlias = npt.NDArray[Any]
"""An item of fixed size for each row."""
_Limbs: TypeAlias = Sequence[npt.NDArray[np.uint64]]
"""Numbers without sign: one array with all of their bits, or four with 32 bits each, the highest first."""

_BASE, _BASE_DIGITS = 10_000, 4
_NEGATIVE, _NAN = 0x4000, 0xC000
_LOW = np.uint64(0xFFFF_FFFF)
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,6})?\s*", re.ASCII)
_DIGITS_MAX, _PLACES_MAX = 131_072, 16_383
"""Of a `numeric`: before and after the decimal point."""


def numerics(
    values: npt.NDArray[Any], is_valid: npt.NDArray[np.bool_] | None, scale: int
) -> list[bytes | Fixed]:
    """Return the parts of each value.

    Args:
        values: 64-bit integers, or pairs of words of 64 bits, the low one first; in two's complement
        is_valid: None: all are
        scale: decimal places
    """
    if is_valid is not None:
        values = np.where(is_valid if values.ndim == 1 else is_valid[:, np.newaxis], values, 0)
    is_negative, limbs = _magnitudes(values)
    digits = []
    if scale % _BASE_DIGITS:
        places = scale % _BASE_DIGITS
        limbs, rest = _divided(limbs, 10**places)
        digits.append(rest * np.uint64(10 ** (_BASE_DIGITS - places)))
    for _ in range(scale // _BASE_DIGITS):
        limbs, rest = _divided(limbs, _BASE)
        digits.append(rest)
    below_point = len(digits)
    while any(limb.any() for limb in limbs):
        limbs, rest = _divided(limbs, _BASE)
        digits.append(rest)
    weight = len(digits) - below_point - 1
    signs = is_negative * np.uint16(_NEGATIVE)
    parts = [one.astype(np.uint16) for one in reversed(digits)]
    return [struct.pack(">Hh", len(digits), weight), signs, struct.pack(">H", scale), *parts]


def _magnitudes(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.bool_], _Limbs]:
    if values.ndim == 1:
        low = values.view(np.uint64)
        return _absolute(low)
    low, high = values[:, 0].astype(np.uint64), values[:, 1].astype(np.uint64)
    sign_bits = np.uint64(0) - (low >> np.uint64(63))
    if (high == sign_bits).all():
        return _absolute(low)
    is_negative = high >> np.uint64(63) != 0
    negated = ~low + np.uint64(1)
    high = np.where(is_negative, ~high + (negated == 0), high)
    low = np.where(is_negative, negated, low)
    half = np.uint64(32)
    return is_negative, (high >> half, high & _LOW, low >> half, low & _LOW)


def _absolute(words: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.bool_], _Limbs]:
    is_negative = words >> np.uint64(63) != 0
    return is_negative, (np.where(is_negative, ~words + np.uint64(1), words),)


def _divided(limbs: _Limbs, divisor: int) -> tuple[_Limbs, npt.NDArray[np.uint64]]:
    """Return quotients and rests."""
    by, quotients, rest = np.uint64(divisor), [], np.uint64(0)
    for limb in limbs:
        part = limb if len(limbs) == 1 else (rest << np.uint64(32)) | limb
        quotient = part // by
        quotients.append(quotient)
        rest = part - quotient * by
    return quotients, rest


def numerics_of_texts(texts: pa.Array, column: str) -> pa.LargeBinaryArray:
    """Numbers of any size, one by one: Arrow has no type for them.

    Raises:
        SchemaMismatchError: a text is no number.
    """
    given = texts.to_pylist()
    return pa.array([None if text is None else _numeric(text, column) for text in given], pa.large_binary())


def _numeric(text: str, column: str) -> bytes:
    if text.strip().lower() == "nan":
        return struct.pack(">hhHh", 0, 0, _NAN, 0)
    number = Decimal(text.strip()) if _NUMBER.fullmatch(text) else None
    exponent = 0 if number is None else int(number.as_tuple().exponent)
    if number is None or number.adjusted() >= _DIGITS_MAX or -exponent > _PLACES_MAX:
        raise SchemaMismatchError(
            f"A text in the column {column} is no number that numeric can store. Correct it in the query."
        )
    sign, figures, _ = number.as_tuple()
    places = max(-exponent, 0)
    whole = "".join(map(str, figures)) + "0" * (max(exponent, 0) + -places % _BASE_DIGITS)
    whole = "0" * (-len(whole) % _BASE_DIGITS) + whole
    digits = [int(whole[at : at + _BASE_DIGITS]) for at in range(0, len(whole), _BASE_DIGITS)]
    weight = len(digits) - -(-places // _BASE_DIGITS) - 1
    return struct.pack(f">HhHH{len(digits)}H", len(digits), weight, sign * _NEGATIVE, places, *digits)
