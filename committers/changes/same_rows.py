"""Whether rows are equal in all their columns: then it does not matter which of them counts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from .keys import one_array


def are_equal(some: pa.Table, others: pa.Table) -> bool:
    """Return True if the rows of both tables are equal, one by one. Both have the same columns.

    NULL equals NULL. Floating-point numbers are equal if their bits are: NaN equals itself, 0.0 not -0.0.
    """
    columns = zip(some.columns, others.columns, strict=True)
    return all(_is_equal(one_array(one), one_array(other)) for one, other in columns)


def _is_equal(one: pa.Array, other: pa.Array) -> bool:
    data_type = one.type
    if isinstance(one, pa.ExtensionArray):
        return _is_equal(one.storage, other.storage)
    if pa.types.is_floating(data_type):
        bits = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[data_type.bit_width]
        return _is_equal(one.view(bits), other.view(bits))
    if not pa.types.is_nested(data_type):
        return bool(one.equals(other))
    if not one.is_null().equals(other.is_null()):
        return False
    one, other = one.drop_null(), other.drop_null()
    if pa.types.is_struct(data_type):
        return all(_is_equal(*fields) for fields in zip(one.flatten(), other.flatten(), strict=True))
    if not _lengths(one).equals(_lengths(other)):
        return False
    return all(_is_equal(*parts) for parts in zip(_elements(one), _elements(other), strict=True))


def _lengths(array: pa.Array) -> pa.Array:
    """Of lists or maps without NULL."""
    return pc.subtract(array.offsets.slice(1), array.offsets.slice(0, len(array)))


def _elements(array: pa.Array) -> tuple[pa.Array, ...]:
    if not pa.types.is_map(array.type):
        return (array.flatten(),)
    first, last = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    return array.keys.slice(0, last - first), array.items.slice(0, last - first)
