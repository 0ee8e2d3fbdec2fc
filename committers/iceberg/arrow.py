"""Arrow's types as Iceberg's, and Iceberg's as those of the data files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from ..errors import SchemaMismatchError

FIELD_ID_KEY = b"PARQUET:field_id"


# From the query -----------------------------------------------------------------------------------


def iceberg_struct(source: pa.Schema, table_name: str) -> StructType:
    """The query's columns as Iceberg has them, with provisional field ids from 1 on.

    All are optional: Spark's flags are hints, not promises.

    Raises:
        SchemaMismatchError: names the columns that Iceberg has no type for.
    """
    ids = itertools.count(1)
    fields, bad = [], []
    for column in source:
        try:
            fields.append(_nested_field(column, lambda: next(ids)))
        except _NoSuchTypeError as error:
            bad.append(f"  - {column.name}: {column.type} ({error})")
    if bad:
        lines = "\n".join(bad)
        raise SchemaMismatchError(
            f"The Iceberg table {table_name} cannot hold these columns of the query:\n{lines}\n"
            "Cast them in the query to a type that Iceberg has, or leave them out. Nothing was written."
        )
    return StructType(*fields)


class _NoSuchTypeError(Exception):
    """Iceberg has no type that holds an Arrow type's values as they are."""


def _nested_field(column: pa.Field, next_id: Callable[[], int]) -> NestedField:
    field_id = next_id()
    return NestedField(field_id, column.name, _iceberg_type(column.type, next_id), required=False)


_SIMPLE_TYPES: dict[pa.DataType, IcebergType] = {
    pa.bool_(): BooleanType(),
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.large_string(): StringType(),
    pa.string_view(): StringType(),
    pa.binary(): BinaryType(),
    pa.large_binary(): BinaryType(),
    pa.binary_view(): BinaryType(),
    pa.date32(): DateType(),
}


def _iceberg_type(kind: pa.DataType, next_id: Callable[[], int]) -> IcebergType:
    if kind in _SIMPLE_TYPES:
        return _SIMPLE_TYPES[kind]
    if pa.types.is_dictionary(kind):
        return _iceberg_type(kind.value_type, next_id)
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return TimestamptzType() if kind.tz else TimestampType()
    if pa.types.is_struct(kind) and kind.num_fields:
        return StructType(*[_nested_field(child, next_id) for child in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return ListType(next_id(), _iceberg_type(kind.value_type, next_id), element_required=False)
    if pa.types.is_map(kind):
        key = next_id(), _iceberg_type(kind.key_type, next_id)
        return MapType(*key, next_id(), _iceberg_type(kind.item_type, next_id), value_required=False)
    raise _NoSuchTypeError("there is no such type in Iceberg")


# For the files ------------------------------------------------------------------------------------


def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns of the data files; every field, however deep, has its field id as metadata."""
    return pa.schema(_arrow_fields(schema.fields))


def _arrow_fields(fields: Iterable[NestedField]) -> list[pa.Field]:
    return [_field(field.name, field.field_type, field.required, field.field_id) for field in fields]


def _field(name: str, kind: IcebergType, required: bool, field_id: int) -> pa.Field:
    metadata = {FIELD_ID_KEY: str(field_id).encode()}
    return pa.field(name, arrow_type(kind), nullable=not required, metadata=metadata)


_ARROW_TYPES: dict[IcebergType, pa.DataType] = {
    BooleanType(): pa.bool_(),
    IntegerType(): pa.int32(),
    LongType(): pa.int64(),
    FloatType(): pa.float32(),
    DoubleType(): pa.float64(),
    StringType(): pa.string(),
    BinaryType(): pa.binary(),
    DateType(): pa.date32(),
    TimeType(): pa.time64("us"),
    TimestampType(): pa.timestamp("us"),
    TimestamptzType(): pa.timestamp("us", "UTC"),
    UUIDType(): pa.uuid(),
}


def arrow_type(kind: IcebergType) -> pa.DataType:
    """The type of a column in the files. Those that no query has hold nothing but NULLs."""
    if isinstance(kind, StructType):
        return pa.struct(_arrow_fields(kind.fields))
    if isinstance(kind, ListType):
        return pa.list_(_field("element", kind.element_type, kind.element_required, kind.element_id))
    if isinstance(kind, MapType):
        key = _field("key", kind.key_type, True, kind.key_id)
        return pa.map_(key, _field("value", kind.value_type, kind.value_required, kind.value_id))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, FixedType):
        return pa.binary(len(kind))
    return _ARROW_TYPES[kind]
