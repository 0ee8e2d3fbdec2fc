"""Columns of a schema, however deep: their types, their place in rows and in Parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

Path: TypeAlias = tuple[str, ...]
"""Names from the top of the schema down; inside lists and maps `element`, `key` and `value`."""


@dataclass(frozen=True, slots=True)
class ParquetColumn:
    """One column of a Parquet file: a leaf of the schema."""

    path: Path
    parquet_path: str
    """Dotted, with the levels that the Parquet format puts around elements, keys and values."""
    field: pa.Field
    is_repeated: bool
    """True inside lists and maps, where a row has any number of values."""

    @property
    def is_floating(self) -> bool:
        return bool(pa.types.is_floating(self.field.type))


def parquet_columns(schema: pa.Schema) -> Iterator[ParquetColumn]:
    """In the order of the file."""
    for field in schema:
        yield from _below(field, (), "", is_repeated=False)


def _below(
    field: pa.Field, prefix: Path, parquet_prefix: str, *, is_repeated: bool
) -> Iterator[ParquetColumn]:
    kind = field.type
    path = (*prefix, field.name)
    parquet_path = parquet_prefix + field.name
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _below(child, path, f"{parquet_path}.", is_repeated=is_repeated)
    elif pa.types.is_map(kind):
        for name, child in (("key", kind.key_field), ("value", kind.item_field)):
            yield from _below(child.with_name(name), path, f"{parquet_path}.key_value.", is_repeated=True)
    elif is_list(kind):
        element = kind.value_field.with_name("element")
        yield from _below(element, path, f"{parquet_path}.list.", is_repeated=True)
    else:
        yield ParquetColumn(path, parquet_path, field, is_repeated)


def parquet_width(kind: pa.DataType) -> int:
    """How many Parquet columns a type takes."""
    return sum(1 for _ in parquet_columns(pa.schema([("column", kind)])))


def field_at(schema: pa.Schema, path: Sequence[str]) -> pa.Field | None:
    """The column that `path` leads to through structs; None if there is none."""
    fields = {field.name: field for field in schema}
    found = None
    for name in path:
        found = fields.get(name)
        fields = {} if found is None else {child.name: child for child in struct_fields(found.type)}
    return found


def struct_fields(kind: pa.DataType) -> list[pa.Field]:
    return list(kind) if pa.types.is_struct(kind) else []


def reach(column: pa.Array, path: Sequence[str]) -> pa.Array:
    """What lies at `path` below a column of structs; NULL where a struct around it is.

    Values of extension types (UUIDs) come as what they are stored as, which Arrow can compute with.
    """
    for name in path:
        column = column.flatten()[column.type.get_field_index(name)]
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def is_string(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Of any length; not those of a fixed size."""
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.UuidType)


def with_offsets(array: pa.Array) -> pa.Array:
    """The same values, without lists that have no offsets.

    Arrow for Java may leave them out where there are no elements; Arrow for C++ then reads the first one all
    the same, to its death, when it is asked for the size.
    """
    kind = array.type
    if not pa.types.is_nested(kind):
        return array
    if len(array) == 0:
        return pa.nulls(0, kind)
    if pa.types.is_struct(kind):
        parts = [array.field(i) for i in range(kind.num_fields)]
        fixed = [with_offsets(part) for part in parts]
        if all(one is other for one, other in zip(parts, fixed, strict=True)):
            return array
        return pa.StructArray.from_arrays(fixed, fields=list(kind), mask=array.is_null())
    if not (is_list(kind) or pa.types.is_map(kind)):
        return array
    elements = _elements(array)
    fixed_elements = with_offsets(elements)
    return array if fixed_elements is elements else over_elements(array, kind, fixed_elements)


def _elements(array: pa.Array) -> pa.Array:
    if pa.types.is_map(array.type):
        fields = [array.type.key_field, array.type.item_field]
        return pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
    return array.values


def over_elements(array: pa.Array, kind: pa.DataType, elements: pa.Array) -> pa.Array:
    """The same lists or maps, as `kind`, over other elements."""
    own_buffers = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), own_buffers, array.null_count, array.offset, [elements])


def with_small_offsets(schema: pa.Schema) -> pa.Schema:
    """The same columns without `large_` types. Parquet files are the same, and Spark's rows need no copy."""
    return pa.schema([field.with_type(_small(field.type)) for field in schema], schema.metadata)


def _small(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_small(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (field.with_type(_small(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if is_list(kind):
        return pa.list_(kind.value_field.with_type(_small(kind.value_type)))
    return kind
