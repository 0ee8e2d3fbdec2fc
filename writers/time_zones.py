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
