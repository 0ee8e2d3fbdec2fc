"""The values of a column in the binary form in which Postgres reads them. Executors only.

Values keep their full precision. The value of a NULL is undefined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...committers.errors import SchemaMismatchError
from ...committers.postgres.types import UTF8, can_encode
from ..parquet.columns import is_binary, is_string
from .binary_numerics import Fixed, numerics, numerics_of_texts
from .text_checks import check_texts

__all__ = ["Fixed", "encoded"]

Values: TypeAlias = "Sequence[bytes | Fixed] | pa.LargeBinaryArray"
"""The parts of each row's value, which have a fixed size, or the bytes of each row."""

_INTEGERS = {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()}
_YEAR_1_DAYS, _YEAR_9999_DAYS, _YEAR_2000_DAYS = -719_162, 2_932_896, 10_957
_DAY_US = 86_400_000_000
_NO_UUID = "00000000-0000-0000-0000-000000000000"
_HYPHENS = [8, 13, 18, 23]
_HEX = np.full(256, 255, np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    _HEX[list(_digits)] = range(16)


def encoded(array: pa.Array, column: str, kind: str, encoding: str) -> Values:
    """
    Args:
        array: not of lists
        column: its name, for messages
        kind: SQL type of the column
        encoding: of the database

    Raises:
        SchemaMismatchError: Postgres cannot store a value.
    """
    data_type = array.type
    if is_string(data_type):
        return _texts(array, column, kind, encoding)
    if is_binary(data_type):
        return array.cast(pa.large_binary())
    if pa.types.is_boolean(data_type):
        return [_numbers(array.cast(pa.uint8()), np.uint8)]
    if kind in _INTEGERS:
        whole = array.cast(_INTEGERS[kind])
        return [_numbers(whole, whole.type.to_pandas_dtype())]
    if pa.types.is_decimal(data_type):
        return numerics(_numbers(array, np.dtype("<u8"), 2), _is_valid(array), data_type.scale)
    if pa.types.is_integer(data_type):
        return numerics(_numbers(array.cast(pa.int64()), np.int64), _is_valid(array), 0)
    if pa.types.is_floating(data_type):
        floats = _numbers(array, data_type.to_pandas_dtype())
        return [np.where(np.isnan(floats), floats.dtype.type(np.nan), floats)]
    return [_times(array, column)]


def _times(array: pa.Array, column: str) -> Fixed:
    """Days or microseconds since 2000-01-01."""
    if pa.types.is_date(array.type):
        numbers, per_day = array.view(pa.int32()), 1
    else:
        numbers, per_day = array.view(pa.int64()), _DAY_US
    bounds = pc.min_max(numbers).as_py()
    low, high = _YEAR_1_DAYS * per_day, (_YEAR_9999_DAYS + 1) * per_day - 1
    if bounds["min"] is not None and (bounds["min"] < low or bounds["max"] > high):
        raise SchemaMismatchError(
            f"A value in {column} is outside of the years 1 to 9999. Filter these rows, or cast the column "
            "to STRING in the query."
        )
    found = _numbers(numbers, numbers.type.to_pandas_dtype())
    since_2000: Fixed = found - found.dtype.type(_YEAR_2000_DAYS * per_day)
    return since_2000


def _numbers(array: pa.Array, dtype: npt.DTypeLike, per_value: int = 1) -> Any:
    """Return the values of an Arrow array without copying them."""
    found = np.frombuffer(array.buffers()[1] or b"", dtype, per_value * (array.offset + len(array)))
    found = found[per_value * array.offset :]
    return found if per_value == 1 else found.reshape(-1, per_value)


def _is_valid(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


# Texts ------------------------------------------------------------------------------------------------


def _texts(array: pa.Array, column: str, kind: str, encoding: str) -> Values:
    _check_characters(array, column, encoding)
    if kind == "uuid":
        return [_uuids(array, column)]
    if kind.startswith("numeric"):
        return numerics_of_texts(array, column)
    data = array.cast(pa.large_binary())
    if kind == "jsonb":  # its binary format has a version
        empty = pa.scalar(b"", data.type)
        return pc.binary_join_element_wise(pa.scalar(b"\x01", data.type), data, empty)
    return data


def _check_characters(array: pa.Array, column: str, encoding: str) -> None:
    characters = _characters(array)
    has_zeros = characters.size > 0 and not characters.min()  # those of a NULL do not matter
    if has_zeros and pc.any(pc.match_substring(array, "\0")).as_py():
        raise SchemaMismatchError(
            f"A string in {column} contains a NUL character, which Postgres cannot store. Remove it in the "
            f"query, e.g. with translate({column}, '\\0', ''), or write the column as BINARY."
        )
    if encoding == UTF8:
        return
    others = array.filter(pc.invert(pc.string_is_ascii(array)))
    if not all(can_encode(text, encoding) for text in others.to_pylist() if text is not None):
        raise SchemaMismatchError(
            f"A string in {column} contains a character that the encoding of the database, {encoding}, does "
            "not have. Replace it in the query, write the column as BINARY, or use a database in UTF8."
        )


def _uuids(array: pa.Array, column: str) -> Fixed:
    texts = array.fill_null(_NO_UUID)
    digits = _digits_of(texts)
    if digits is None:  # braces, or hyphens elsewhere
        check_texts(texts, column, "uuid")
        for sign in "{}-":
            texts = pc.replace_substring(texts, sign, "")
        digits = _HEX[_characters(texts).reshape(-1, 32)]
    return (digits[:, 0::2] << 4) | digits[:, 1::2]


def _digits_of(texts: pa.Array) -> npt.NDArray[np.uint8] | None:
    """Return the digits of UUIDs in the usual form; None if one of them has another form."""
    if not pc.all(pc.equal(pc.binary_length(texts), len(_NO_UUID))).as_py():
        return None
    characters = _characters(texts).reshape(-1, len(_NO_UUID))
    digits = _HEX[np.delete(characters, _HYPHENS, axis=1)]
    is_usual = bool((characters[:, _HYPHENS] == ord("-")).all()) and bool((digits < 16).all())
    return digits if is_usual else None


def _characters(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes of all texts, one after the other."""
    whole = texts.cast(pa.large_binary())
    _, offsets, data = whole.buffers()
    ends = np.frombuffer(offsets, np.int64, whole.offset + len(whole) + 1)
    return np.frombuffer(data or b"", np.uint8)[ends[whole.offset] : ends[-1]]
