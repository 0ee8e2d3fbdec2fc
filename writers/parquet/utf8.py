"""Texts that are none: Spark casts any bytes to STRING, and no reader takes a Parquet file with such."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.errors import SchemaMismatchError
from .columns import is_list, is_string

_OFFSET = struct.Struct("=i")


def has_strings(kind: pa.DataType) -> bool:
    """Is there a string in the type, however deep?"""
    return is_string(kind) or any(has_strings(inner.type) for inner in _inside(kind))


def check_utf8(columns: Sequence[pa.Array], fields: Sequence[pa.Field], where: str) -> None:
    """
    Args:
        columns: those of `fields`, which have texts
        where: names the task attempt in the error message

    Raises:
        SchemaMismatchError: names the columns in which a text is no valid UTF-8.
    """
    paths = [
        path for array, field in zip(columns, fields, strict=True) for path in _bad_paths(array, field.name)
    ]
    if paths:
        raise SchemaMismatchError(
            f"A text in {', '.join(paths)} is no valid UTF-8 ({where}): it was made of bytes that are no "
            "text, and no engine could read the file. Write make_valid_utf8(col) instead, filter by "
            "is_valid_utf8(col), or keep the column as BINARY."
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
    """At ten times the speed of a validation: in most data nothing more is to be looked at."""
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
    kind = array.type
    if pa.types.is_struct(kind):
        yield from ((field.name, array.field(i)) for i, field in enumerate(kind))
    elif pa.types.is_map(kind):
        yield from (("key", array.keys), ("value", array.items))
    elif is_list(kind):
        yield "element", array.values


def _inside(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if is_list(kind) else []
