"""Values that Debezium did not get, such as those of TOAST columns that an update leaves as they are.

Debezium writes a placeholder in their place. It has a form for each type.
"""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ....committers.arrow_values import string_array
from ...parquet.columns import is_binary, is_list, is_string
from .conversion import binary_array

PLACEHOLDER = "__debezium_unavailable_value"

_BYTES = PLACEHOLDER.encode()
_UUID = str(uuid.UUID(bytes=hashlib.md5(_BYTES, usedforsecurity=False).digest(), version=3))
_TEXTS = (PLACEHOLDER, base64.b64encode(_BYTES).decode(), _BYTES.hex())
_FLAT = frozenset([*_TEXTS, _BYTES])
_LISTS: Sequence[list[Any]] = (
    *([text] for text in (*_TEXTS, _UUID)),
    [_BYTES],
    list(_BYTES),
)
_MAPS = ({PLACEHOLDER: PLACEHOLDER}, {_BYTES: _BYTES})
_LENGTHS = (1, len(_BYTES))


def unavailable(values: pa.Array) -> pa.Array | None:
    """Return which values are placeholders; None if none is."""
    kind = values.type
    if is_string(kind):
        found = pc.is_in(values, value_set=string_array(_TEXTS, kind))
    elif is_binary(kind):
        found = pc.is_in(values, value_set=binary_array([_BYTES]).cast(kind))
    elif is_list(kind) or pa.types.is_map(kind):
        found = _in_lists(values)
    else:
        return None
    return found if pc.any(found).as_py() else None


def _in_lists(values: pa.Array) -> pa.Array:
    is_map = pa.types.is_map(values.type)
    offsets = values.offsets
    lengths = pc.subtract(offsets.slice(1), offsets.slice(0, len(values))).to_pylist()
    found = [False] * len(values)
    for number, length in enumerate(lengths):
        if length in _LENGTHS and values[number].is_valid:
            value = values[number].as_py()
            found[number] = is_unavailable(dict(value) if is_map else value)
    return booleans(found)


def unavailable_objects(values: Sequence[Any]) -> list[bool] | None:
    """Return which values are placeholders; None if none is."""
    kinds = set(map(type, values))
    if kinds.isdisjoint((list, dict)) and (kinds.isdisjoint((str, bytes)) or _FLAT.isdisjoint(values)):
        return None
    found = [is_unavailable(value) for value in values]
    return found if any(found) else None


def is_unavailable(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) in _LENGTHS and value in _LISTS
    if isinstance(value, dict):
        return len(value) == 1 and value in _MAPS
    return value in _FLAT


def booleans(values: Sequence[bool]) -> pa.Array:
    """Return an array without the pandas that `pa.array` loads."""
    bits = int("".join("1" if value else "0" for value in reversed(values)) or "0", 2)
    buffer = pa.py_buffer(bits.to_bytes((len(values) + 7) // 8, "little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, buffer])
