"""Columns of a schema, including nested ones: types, access in rows, position in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

Path: TypeAlias = tuple[str, ...]
"""Names from the top level of the schema; inside lists and maps `element`, `key` and `value`."""


@dataclass(frozen=True, slots=True)
class ParquetColumn:
    """One column of a Parquet file: a leaf of the schema."""

    path: Path
    parquet_path: str
    """Dotted, including the levels that the Parquet format adds around elements, keys and values."""
    field: pa.Field
    is_repeated: bool
    """True inside lists and maps, where a row has any number of values."""

    @property
    def is_floating(self) -> bool:
        return bool(pa.types.is_floating(self.field.type))


def parquet_columns(schema: pa.Schema) -> Iterator[ParquetColumn]:
    """All leaf columns, in the order of the file."""
    for field in schema:
        yield from _below(field, (), "", is_repeated=False)


def _below(
    field: pa.Field, prefix: Path, parquet_prefix: str, *, is_repeated: bool
) -> Iterator[ParquetColumn]:
    data_type = field.type
    path = (*prefix, field.name)
    parquet_path = parquet_prefix + field.name
    if pa.types.is_struct(data_type):
        for child in data_type:
            yield from _below(child, path, f"{parquet_path}.", is_repeated=is_repeated)
    elif pa.types.is_map(data_type):
        for name, child in (("key", data_type.key_field), ("value", data_type.item_field)):
            yield from _below(child.with_name(name), path, f"{parquet_path}.key_value.", is_repeated=True)
    elif is_list(data_type):
        element = data_type.value_field.with_name("element")
        yield from _below(element, path, f"{parquet_path}.list.", is_repeated=True)
    else:
        yield ParquetColumn(path, parquet_path, field, is_repeated)


def leaf_arrays(array: pa.Array) -> Iterator[pa.Array]:
    """The values of all leaves of a column, inside structs, lists and maps."""
    if pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from leaf_arrays(child)
    elif pa.types.is_map(array.type):
        yield from leaf_arrays(array.keys)
        yield from leaf_arrays(array.items)
    elif is_list(array.type):
        yield from leaf_arrays(array.flatten())
    else:
        yield array


def parquet_width(data_type: pa.DataType) -> int:
    """Number of Parquet columns of a type."""
    return sum(1 for _ in parquet_columns(pa.schema([("column", data_type)])))


def field_at(schema: pa.Schema, path: Sequence[str]) -> pa.Field | None:
    """The field at `path`, through structs; None if there is none."""
    fields = {field.name: field for field in schema}
    found = None
    for name in path:
        found = fields.get(name)
        fields = {} if found is None else {child.name: child for child in struct_fields(found.type)}
    return found


def struct_fields(data_type: pa.DataType) -> list[pa.Field]:
    return list(data_type) if pa.types.is_struct(data_type) else []


def reach(column: pa.Array, path: Sequence[str]) -> pa.Array:
    """The values at `path` below a struct column; NULL if an enclosing struct is NULL.

    Values of extension types (UUIDs) are returned as their storage type, which Arrow can compute with.
    """
    for name in path:
        column = column.flatten()[column.type.get_field_index(name)]
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


def is_string(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type)
    )


def is_binary(data_type: pa.DataType) -> bool:
    """Variable-size lists; not fixed-size ones."""
    types = pa.types
    return bool(
        types.is_binary(data_type) or types.is_large_binary(data_type) or types.is_binary_view(data_type)
    )


def is_uuid(data_type: pa.DataType) -> bool:
    return isinstance(data_type, pa.UuidType)


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with strings and binaries in the usual layout.

    The Delta library notes in its files that it had views of them, and Arrow then reads them as views, which
    few of its functions accept.
    """
    fields = [field.with_type(_without_views(field.type)) for field in batch.schema]
    return batch if fields == list(batch.schema) else batch.cast(pa.schema(fields))


def _without_views(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(data_type):
        return pa.string()
    if pa.types.is_binary_view(data_type):
        return pa.binary()
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_without_views(field.type)) for field in data_type])
    if is_list(data_type):
        field = data_type.value_field
        return pa.list_(field.with_type(_without_views(field.type)))
    if pa.types.is_map(data_type):
        key, value = data_type.key_field, data_type.item_field
        return pa.map_(key.with_type(_without_views(key.type)), value.with_type(_without_views(value.type)))
    return data_type


def with_offsets(array: pa.Array) -> pa.Array:
    """The same values, but lists always have offsets.

    Arrow for Java may leave out the offsets if there are no elements. Arrow for C++ reads the first offset
    anyway, and crashes when it computes the size.
    """
    data_type = array.type
    if not pa.types.is_nested(data_type):
        return array
    if len(array) == 0:
        return pa.nulls(0, data_type)
    if pa.types.is_struct(data_type):
        parts = [array.field(i) for i in range(data_type.num_fields)]
        fixed = [with_offsets(part) for part in parts]
        if all(one is other for one, other in zip(parts, fixed, strict=True)):
            return array
        return pa.StructArray.from_arrays(fixed, fields=list(data_type), mask=array.is_null())
    if not (is_list(data_type) or pa.types.is_map(data_type)):
        return array
    elements = _elements(array)
    fixed_elements = with_offsets(elements)
    return array if fixed_elements is elements else over_elements(array, data_type, fixed_elements)


def _elements(array: pa.Array) -> pa.Array:
    if pa.types.is_map(array.type):
        fields = [array.type.key_field, array.type.item_field]
        return pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
    return array.values


def over_elements(array: pa.Array, data_type: pa.DataType, elements: pa.Array) -> pa.Array:
    """The same lists or maps with the type `data_type`, over other elements."""
    own_buffers = array.buffers()[:2]
    return pa.Array.from_buffers(
        data_type, len(array), own_buffers, array.null_count, array.offset, [elements]
    )


def with_small_offsets(schema: pa.Schema) -> pa.Schema:
    """The same columns without `large_` types. Parquet files are identical, and Spark's rows need no copy."""
    return pa.schema([field.with_type(_small(field.type)) for field in schema], schema.metadata)


def _small(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(data_type):
        return pa.string()
    if pa.types.is_large_binary(data_type):
        return pa.binary()
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_small(field.type)) for field in data_type])
    if pa.types.is_map(data_type):
        key, item = (
            field.with_type(_small(field.type)) for field in (data_type.key_field, data_type.item_field)
        )
        return pa.map_(key, item, keys_sorted=data_type.keys_sorted)
    if is_list(data_type):
        return pa.list_(data_type.value_field.with_type(_small(data_type.value_type)))
    return data_type
