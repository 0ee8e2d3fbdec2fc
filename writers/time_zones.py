"""The time zone of Arrow's timestamps. It is a part of their type, and does not change the values."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types


def with_zone(data_type: pa.DataType, zone: str | None) -> pa.DataType:
    """Return the type with another zone, or with none, in all its timestamps that have one."""

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(with_zone(field.type, zone))

    if types.is_timestamp(data_type) and data_type.tz:
        return pa.timestamp(data_type.unit, zone)
    if types.is_struct(data_type):
        return pa.struct([changed(field) for field in data_type])
    if types.is_map(data_type):
        return pa.map_(changed(data_type.key_field), changed(data_type.item_field), data_type.keys_sorted)
    if types.is_large_list(data_type):
        return pa.large_list(changed(data_type.value_field))
    if types.is_list(data_type):
        return pa.list_(changed(data_type.value_field))
    return data_type


def relabelled(array: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return the array with a type that differs from its own only in time zones, without a copy of values.

    `cast` fails at the empty lists without offsets that Spark 4.0 sends, and `view` at a NULL struct around a
    field that is NOT NULL, in which Spark writes a NULL too.
    """
    if array.type == data_type:
        return array
    if types.is_timestamp(data_type):
        return array.view(data_type)
    if types.is_struct(data_type):
        children = [relabelled(array.field(at), field.type) for at, field in enumerate(data_type)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(data_type), mask=mask)
    if types.is_map(data_type):
        entries = pa.struct([data_type.key_field, data_type.item_field])
        inside = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        inside = relabelled(inside, entries)
    else:
        inside = relabelled(array.values, data_type.value_type)
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(data_type, len(array), buffers, -1, array.offset, [inside])
