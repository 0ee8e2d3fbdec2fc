"""Detects strings that are not valid UTF-8: Spark casts any bytes to STRING, and readers reject Parquet files
with them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.errors import SchemaMismatchError
from .columns import is_list, is_string

_OFFSET = struct.Struct("=i")


def has_strings(data_type: pa.DataType) -> bool:
    """Return True if the type contains a string, at any level."""
    return is_string(data_type) or any(has_strings(inner.type) for inner in _inside(data_type))


def check_utf8(columns: Sequence[pa.Array], fields: Sequence[pa.Field], where: str) -> None:
    """
    Args:
        columns: those of `fields`, which contain strings
        where: names the task attempt in the error message

    Raises:
        SchemaMismatchError: names the columns with a string that is not valid UTF-8.
    """
    paths = [
        path for array, field in zip(columns, fields, strict=True) for path in _bad_paths(array, field.name)
    ]
    if paths:
        raise SchemaMismatchError(
            f"A string in {', '.join(paths)} is not valid UTF-8 ({where}), and engines could not read the "
            "file. Use make_valid_utf8(col), filter by is_valid_utf8(col), or keep the column as BINARY."
        )


def _bad_paths(array: pa.Array, path: str) -> Iterator[str]:
    if _is_ascii(array):
        return
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        if is_string(array.type):
            yield path
        for name, child in _children(array):
            yield from _bad_paths(child, f"{path}.{name}")


def _is_ascii(array: pa.Array) -> bool:
    """Ten times as fast as a validation, and sufficient for most data."""
    if not pa.types.is_string(array.type) or len(array) == 0:
        return False
    _, offsets, data = array.buffers()
    (first,) = _OFFSET.unpack_from(offsets, array.offset * _OFFSET.size)
    (end,) = _OFFSET.unpack_from(offsets, (array.offset + len(array)) * _OFFSET.size)
    if first == end:
        return True
    signed = pa.Array.from_buffers(pa.int8(), end - first, [None, data], offset=first)
    return bool(pc.min(signed).as_py() >= 0)


def _children(array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    data_type = array.type
    if pa.types.is_struct(data_type):
        yield from ((field.name, array.field(i)) for i, field in enumerate(data_type))
    elif pa.types.is_map(data_type):
        yield from (("key", array.keys), ("value", array.items))
    elif is_list(data_type):
        yield "element", array.values


def _inside(data_type: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(data_type):
        return list(data_type)
    if pa.types.is_map(data_type):
        return [data_type.key_field, data_type.item_field]
    return [data_type.value_field] if is_list(data_type) else []
