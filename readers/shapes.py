"""Rows of a data file in the columns of the table, as they are now: files are older than later changes of the
schema.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..committers.arrow_values import string_array
from ..committers.errors import TableNotSupportedError
from ..writers.parquet.columns import is_list, over_elements
from ..writers.parquet.field_ids import has_field_ids, renamed_by_id

FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class NamedField:
    """Field id of a column in files without field ids, from the table's name mapping."""

    names: tuple[str, ...]
    field_id: int | None
    fields: tuple[NamedField, ...] = ()


def named_as(name: str, mapping: Sequence[NamedField]) -> NamedField | None:
    """Return what a mapping says of a column."""
    return next((one for one in mapping if name in one.names), None)


def in_table(
    rows: pa.RecordBatch,
    columns: pa.Schema,
    mapping: Sequence[NamedField],
    path: str,
    *,
    only_by_name: bool = False,
) -> pa.RecordBatch:
    """Return the columns of a file that the table has, with their names in the table.

    Args:
        columns: of the table, with field ids if names may change; of those, others without ids are no
            columns of files
        mapping: of names, for files without field ids
        only_by_name: the mapping is that of this file, and its own field ids do not count

    Raises:
        TableNotSupportedError: it is not known which column is which.
    """
    if not has_field_ids(columns):
        return rows.select([name for name in rows.schema.names if name in columns.names])
    if only_by_name or not has_field_ids(rows.schema):
        if not mapping:
            raise TableNotSupportedError(
                f"The data file {path} has no field ids, and the table has no name mapping, so its columns "
                "are unknown. Nothing was read. Set the property schema.name-mapping.default of the table."
            )
        fields = [_with_ids(field, mapping) for field in rows.schema]
        rows = pa.RecordBatch.from_arrays(
            [_retyped(column, field.type) for column, field in zip(rows.columns, fields, strict=True)],
            schema=pa.schema(fields),
        )
        if not has_field_ids(fields):
            return rows.select([])
    return renamed_by_id(rows, pa.schema([one for one in columns if has_field_ids([one])]), path)


def _with_ids(field: pa.Field, mapping: Sequence[NamedField]) -> pa.Field:
    known = named_as(field.name, mapping)
    if known is None:
        return pa.field(field.name, field.type, field.nullable)
    data_type, below = field.type, known.fields
    if pa.types.is_struct(data_type):
        data_type = pa.struct([_with_ids(child, below) for child in data_type])
    elif pa.types.is_map(data_type):
        key = _with_ids(data_type.key_field.with_name("key"), below)
        data_type = pa.map_(key, _with_ids(data_type.item_field.with_name("value"), below))
    elif is_list(data_type):
        data_type = pa.list_(_with_ids(data_type.value_field.with_name("element"), below))
    metadata = {} if known.field_id is None else {FIELD_ID: str(known.field_id).encode()}
    return pa.field(field.name, data_type, field.nullable, metadata)


def _retyped(column: pa.Array, data_type: pa.DataType) -> pa.Array:
    """Return the same values, with metadata in nested types."""
    return column.cast(data_type) if pa.types.is_nested(data_type) else column


def without_metadata(data_type: pa.DataType) -> pa.DataType:
    """Return a type whose nested fields have no metadata."""

    def plain(field: pa.Field) -> pa.Field:
        return pa.field(field.name, without_metadata(field.type), field.nullable)

    if pa.types.is_struct(data_type):
        return pa.struct(list(map(plain, data_type)))
    if pa.types.is_map(data_type):
        return pa.map_(plain(data_type.key_field), plain(data_type.item_field))
    return pa.list_(plain(data_type.value_field)) if is_list(data_type) else data_type


def conform(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert values to a type of the same structure: fields that a struct does not have become NULL, and
    types are widened.

    Raises:
        pa.ArrowException: the values do not fit.
    """
    own = array.type
    if own.equals(target, check_metadata=True):
        return array
    if isinstance(array, pa.ExtensionArray):
        return conform(array.storage, target)
    if isinstance(target, pa.ExtensionType):
        return pa.ExtensionArray.from_storage(target, conform(array, target.storage_type))
    if pa.types.is_dictionary(own):
        return conform(array.dictionary_decode(), target)
    if pa.types.is_struct(own) and pa.types.is_struct(target):
        parts = [_child(array, field) for field in target]
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=array.is_null())
    if pa.types.is_map(own) and pa.types.is_map(target):
        fields = [target.key_field, target.item_field]
        parts = [conform(array.keys, target.key_type), conform(array.items, target.item_type)]
        return over_elements(array, target, pa.StructArray.from_arrays(parts, fields=fields))
    if is_list(own) and is_list(target):
        values = conform(array.values, target.value_type)
        if pa.types.is_large_list(own):
            return pa.ListArray.from_arrays(array.offsets.cast(pa.int32()), values, type=target)
        return over_elements(array, target, values)
    if pa.types.is_string(target) and pa.types.is_fixed_size_binary(own):
        return _uuid_texts(array)
    return array.cast(target)


def _child(array: pa.StructArray, field: pa.Field) -> pa.Array:
    number = array.type.get_field_index(field.name)
    if number < 0:
        return pa.nulls(len(array), field.type)
    return conform(array.flatten()[number], field.type)


def _uuid_texts(array: pa.Array) -> pa.Array:
    texts = [None if value is None else str(uuid.UUID(bytes=value)) for value in array.to_pylist()]
    return string_array(texts)
