"""Rows in the CSV format of Postgres' COPY, with which tests compare the binary format.

Values keep their full precision: floating-point numbers are written with all needed digits, timestamps with
microseconds and in UTC.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from penstock.committers.errors import SchemaMismatchError
from penstock.committers.postgres.types import UTF8, can_encode
from penstock.writers.parquet.columns import is_binary, is_list, is_string

_TEXT = pa.large_string()
_YEAR_1_DAYS, _YEAR_9999_DAYS = -719_162, 2_932_896
_DAY_US = 86_400_000_000


_OPTIONS = csv.WriteOptions(include_header=False, quoting_style="all_valid")
"""A field without quotes is NULL: this is how COPY distinguishes NULL from an empty string."""


def copy_csv(batch: pa.RecordBatch, encoding: str = UTF8) -> pa.Buffer:
    """The rows of the batch as CSV.

    Args:
        encoding: of the database, by Postgres' name

    Raises:
        SchemaMismatchError: names the column with a value that Postgres cannot store.
    """
    columns = [
        _text(array, name, encoding) for array, name in zip(batch.columns, batch.schema.names, strict=True)
    ]
    rows = pa.BufferOutputStream()
    csv.write_csv(pa.record_batch(columns, names=batch.schema.names), rows, _OPTIONS)
    return rows.getvalue()


def _text(array: pa.Array, column: str, encoding: str) -> pa.Array:
    """Each value in the form that Postgres reads."""
    data_type = array.type
    if is_list(data_type):
        return _array_string(array, column, encoding)
    if is_binary(data_type):
        return pc.binary_join_element_wise(pa.scalar("\\x", _TEXT), _hex(array), pa.scalar("", _TEXT))
    if pa.types.is_timestamp(data_type):
        _check_years(array, column, _YEAR_1_DAYS * _DAY_US, (_YEAR_9999_DAYS + 1) * _DAY_US - 1)
        strings = array.view(pa.timestamp("us")).cast(_TEXT)
        zone = pa.scalar("+00" if data_type.tz else "", _TEXT)
        return pc.binary_join_element_wise(strings, zone, pa.scalar("", _TEXT))
    if pa.types.is_date(data_type):
        _check_years(array, column, _YEAR_1_DAYS, _YEAR_9999_DAYS)
    strings = array.cast(_TEXT)
    if is_string(data_type) and pc.any(pc.match_substring(strings, "\0")).as_py():
        raise SchemaMismatchError(
            f"A string in {column} contains a NUL character, which Postgres cannot store. Remove it in the "
            f"query, e.g. with translate({column}, '\\0', ''), or write the column as BINARY."
        )
    if is_string(data_type) and encoding != UTF8:
        _check_encoding(strings, column, encoding)
    return strings


def _check_encoding(strings: pa.Array, column: str, encoding: str) -> None:
    is_ascii = pc.string_is_ascii(strings)
    if all(can_encode(text, encoding) for text in strings.filter(pc.invert(is_ascii)).to_pylist()):
        return
    raise SchemaMismatchError(
        f"A string in {column} contains a character that the encoding of the database, {encoding}, does not "
        "have. Replace it in the query, write the column as BINARY, or use a database in UTF8."
    )


def _hex(array: pa.Array) -> pa.Array:
    """Two hex digits for each byte, for the whole buffer at once."""
    array = array.cast(pa.large_binary())
    if array.offset:  # a slice: its buffers also contain the values before it
        array = pa.concat_arrays([array, pa.array([], pa.large_binary())])
    valid, offsets, data = array.buffers()
    digits = b"" if data is None else data.to_pybytes().hex().encode()
    doubled = pc.multiply(pa.Array.from_buffers(pa.int64(), len(array) + 1, [None, offsets]), 2)
    return pa.Array.from_buffers(_TEXT, len(array), [valid, doubled.buffers()[1], pa.py_buffer(digits)])


def _array_string(array: pa.ListArray, column: str, encoding: str) -> pa.Array:
    """`{"value",NULL,...}`"""
    first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    strings = _text(array.values.slice(first, end - first), column, encoding)
    for char in ("\\", '"'):
        strings = pc.replace_substring(strings, char, f"\\{char}")
    quote = pa.scalar('"', _TEXT)
    quoted = pc.binary_join_element_wise(quote, strings, quote, pa.scalar("", _TEXT)).fill_null("NULL")
    offsets = pc.subtract(array.offsets.cast(pa.int64()), first)
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, quoted), pa.scalar(",", _TEXT))
    whole = pc.binary_join_element_wise(
        pa.scalar("{", _TEXT), joined, pa.scalar("}", _TEXT), pa.scalar("", _TEXT)
    )
    return pc.if_else(array.is_valid(), whole, pa.scalar(None, _TEXT))


def _check_years(array: pa.Array, column: str, low: int, high: int) -> None:
    bounds = pc.min_max(array.view(pa.int32() if pa.types.is_date(array.type) else pa.int64())).as_py()
    if bounds["min"] is not None and (bounds["min"] < low or bounds["max"] > high):
        raise SchemaMismatchError(
            f"A value in {column} is outside of the years 1 to 9999. Filter these rows, or cast the column "
            "to STRING in the query."
        )
