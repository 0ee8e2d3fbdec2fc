"""Converts Arrow batches to the binary format of Postgres' COPY, all rows of a batch at once.

Executors only. Formats: "Binary Format" of COPY in Postgres' documentation, and the `*_recv` functions of
the types in its source.

A row is a sequence of pieces: constants (the number of fields, the lengths of numbers), values of fixed
size, and the bytes of texts and other values of variable size. Neighbours of fixed size become one numpy
array; then Arrow joins the pieces of each row.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...committers.postgres.types import UTF8
from ..parquet.columns import is_list
from .binary_values import Fixed, encoded

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_BYTES = pa.large_binary()
_NULL = -1
"""The length of NULL."""
_Piece: TypeAlias = "bytes | Fixed | pa.LargeBinaryArray"
"""Of all rows: the same bytes in each, values of fixed size, or any number of bytes (none for NULL)."""

_OIDS = {
    "boolean": 16,
    "bytea": 17,
    "bigint": 20,
    "smallint": 21,
    "integer": 23,
    "text": 25,
    "json": 114,
    "real": 700,
    "double precision": 701,
    "character varying": 1043,
    "date": 1082,
    "timestamp without time zone": 1114,
    "timestamp with time zone": 1184,
    "numeric": 1700,
    "uuid": 2950,
    "jsonb": 3802,
}
"""From `pg_type.dat`; the same in every database."""


def copy_binary(batch: pa.RecordBatch, sql_types: Sequence[str], encoding: str = UTF8) -> pa.Buffer:
    """The rows of the batch, without header and trailer.

    Args:
        sql_types: of the columns, in the form of `format_type`
        encoding: of the database, by Postgres' name

    Raises:
        SchemaMismatchError: names the column with a value that Postgres cannot store.
    """
    pieces: list[_Piece] = [struct.pack(">h", batch.num_columns)]
    for array, name, kind in zip(batch.columns, batch.schema.names, sql_types, strict=True):
        pieces += _field(array, name, kind, encoding)
    return _data(_joined(pieces, batch.num_rows))


def _field(array: pa.Array, column: str, kind: str, encoding: str) -> Sequence[_Piece]:
    """Return the length of each value, and its bytes."""
    if is_list(array.type):
        return _list_field(array, column, kind.removesuffix("[]"), encoding)
    values = encoded(array, column, kind, encoding)
    if isinstance(values, pa.Array):
        return _lengths(values), values
    width = sum(len(one) if isinstance(one, bytes) else _width(one) for one in values)
    if not array.null_count:
        return struct.pack(">i", width), *values
    is_valid = array.is_valid().to_numpy(zero_copy_only=False)
    rows = _side_by_side(values, len(array)).reshape(-1, width)
    sizes = np.where(is_valid, width, 0)
    return np.where(is_valid, width, _NULL).astype(np.int32), _bytes(rows[is_valid], sizes)


def _list_field(array: pa.ListArray, column: str, kind: str, encoding: str) -> Sequence[_Piece]:
    """Return length, header and elements of arrays: dimensions, whether there are NULLs, the type's OID; then
    size and first index of the only dimension, unless the array is empty.
    """
    elements = array.flatten()
    sizes = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = _ends(sizes)
    nulls = _ends(elements.is_null().to_numpy(zero_copy_only=False).astype(np.int64))[ends]
    header = np.zeros((len(array), 5), ">i4")
    header[:, 0] = sizes > 0
    header[:, 1] = np.diff(nulls) > 0
    header[:, 2] = _OIDS[kind.partition("(")[0]]
    header[:, 3] = sizes
    header[:, 4] = 1
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    header_bytes = np.where(is_null, 0, np.where(sizes > 0, 20, 12))
    is_written = np.arange(20) < header_bytes[:, np.newaxis]

    joined = _joined(_field(elements, column, kind, encoding), len(elements))
    begins = np.frombuffer(joined.buffers()[1], np.int64, len(joined) + 1)[ends]
    lengths = np.where(is_null, _NULL, header_bytes + np.diff(begins)).astype(np.int32)
    body = pa.Array.from_buffers(_BYTES, len(array), [None, pa.py_buffer(begins), joined.buffers()[2]])
    return lengths, _bytes(header.view(np.uint8)[is_written], header_bytes), body


# Pieces of all rows -----------------------------------------------------------------------------------


def _joined(pieces: Sequence[_Piece], count: int) -> pa.LargeBinaryArray:
    """Join the pieces of each row."""
    arrays: list[pa.Array] = []
    for is_array, group in groupby(pieces, key=lambda piece: isinstance(piece, pa.Array)):
        if is_array:
            arrays += group
        else:
            rows = _side_by_side(list(group), count)
            arrays.append(_bytes(rows, np.full(count, rows.size // max(count, 1))))
    if len(arrays) == 1:
        return arrays[0]
    return pc.binary_join_element_wise(
        *arrays, pa.scalar(b"", _BYTES), null_handling="replace", null_replacement=b""
    )


def _side_by_side(pieces: Sequence[bytes | Fixed], count: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of each row, one row after the other."""
    row, names, fields = b"", [], {}
    for piece in pieces:
        if isinstance(piece, bytes):
            row += piece
            continue
        names.append(f"f{len(row)}")
        fields[names[-1]] = piece
        row += bytes(_width(piece))
    rows = np.empty(count, f"V{len(row)}")
    rows[:] = np.frombuffer(row, rows.dtype)
    formats = [(one.dtype.newbyteorder(">"), one.shape[1:]) for one in fields.values()]
    offsets = [int(name[1:]) for name in names]
    layout = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": len(row)})
    view = rows.view(layout)
    for name, one in fields.items():
        view[name] = one
    return rows.view(np.uint8)


def _bytes(values: Fixed, sizes: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Return the bytes of `values`, in parts of these sizes."""
    data = pa.py_buffer(np.ascontiguousarray(values).view(np.uint8) if values.size else b"")
    return pa.Array.from_buffers(_BYTES, len(sizes), [None, pa.py_buffer(_ends(sizes)), data])


def _ends(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return 0 and the end of each part."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def _lengths(values: pa.LargeBinaryArray) -> Fixed:
    lengths = pc.binary_length(values).fill_null(_NULL).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, np.int32)


def _width(values: Fixed) -> int:
    return values.dtype.itemsize * math.prod(values.shape[1:])


def _data(array: pa.LargeBinaryArray) -> pa.Buffer:
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64, array.offset + len(array) + 1)
    begin, end = int(ends[array.offset]), int(ends[-1])
    return data.slice(begin, end - begin) if data is not None else pa.py_buffer(b"")
