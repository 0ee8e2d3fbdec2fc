"""Finds the columns of a data file by their field ids, as formats do whose columns can be renamed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from ...committers.errors import TableNotSupportedError
from .columns import is_list, over_elements, with_offsets

_KEY = b"PARQUET:field_id"


def has_field_ids(fields: Iterable[pa.Field]) -> bool:
    return any(_id(field) is not None for field in fields)


def renamed_by_id(rows: pa.RecordBatch, wanted: pa.Schema, path: str) -> pa.RecordBatch:
    """Return the rows of a file with the names of the wanted schema, in its order. Columns that one of the
    two does not have are left out. Types stay as they are.

    Args:
        wanted: each field, including nested ones, has its field id
        path: of the file

    Raises:
        TableNotSupportedError: the file has no field ids.
    """
    if not has_field_ids(rows.schema):
        raise TableNotSupportedError(
            f"The data file {path} has no field ids, so it cannot be written again with the columns of the "
            "table. Nothing was committed. Use merge=on-read, or rewrite it with another engine."
        )
    columns, fields = _renamed(
        [with_offsets(column) for column in rows.columns], list(rows.schema), list(wanted)
    )
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _renamed(
    arrays: Sequence[pa.Array], fields: Sequence[pa.Field], wanted: Sequence[pa.Field]
) -> tuple[list[pa.Array], list[pa.Field]]:
    by_id = {_id(field): array for array, field in zip(arrays, fields, strict=True)}
    found = [(by_id[_id(field)], field) for field in wanted if _id(field) in by_id]
    columns = [_with_names(array, field.type) for array, field in found]
    return columns, [pa.field(field.name, one.type) for one, (_, field) in zip(columns, found, strict=True)]


def _with_names(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return an array whose nested fields have the names of the wanted type."""
    own = array.type
    if pa.types.is_struct(own) and pa.types.is_struct(wanted):
        children, fields = _renamed(array.flatten(), list(own), list(wanted))
        if not children:  # all its fields are newer than the file
            fields = list(wanted)
            children = [pa.nulls(len(array), field.type) for field in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_map(own) and pa.types.is_map(wanted):
        key, item = _with_names(array.keys, wanted.key_type), _with_names(array.items, wanted.item_type)
        data_type = pa.map_(key.type, item.type)
        fields = [data_type.key_field, data_type.item_field]
        return over_elements(array, data_type, pa.StructArray.from_arrays([key, item], fields=fields))
    if is_list(own) and is_list(wanted):
        elements = _with_names(array.values, wanted.value_type)
        return over_elements(array, pa.list_(elements.type), elements)
    return array


def _id(field: pa.Field) -> int | None:
    number = (field.metadata or {}).get(_KEY)
    return None if number is None else int(number)
