"""Converts Arrow types to Iceberg types, and Iceberg types to those of the data files."""

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
    """The query's columns as Iceberg types, with provisional field ids starting at 1.

    All are optional: Spark's nullability flags are hints, not guarantees.

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
            f"The Iceberg table {table_name} cannot store these columns of the query:\n"
            f"{lines}\n"
            "Cast them in the query to a type that Iceberg supports, or leave them out. Nothing was "
            "written."
        )
    return StructType(*fields)


class _NoSuchTypeError(Exception):
    """No Iceberg type can store the values of an Arrow type unchanged."""


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


def _iceberg_type(data_type: pa.DataType, next_id: Callable[[], int]) -> IcebergType:
    if data_type in _SIMPLE_TYPES:
        return _SIMPLE_TYPES[data_type]
    if pa.types.is_dictionary(data_type):
        return _iceberg_type(data_type.value_type, next_id)
    if pa.types.is_decimal128(data_type) and 0 <= data_type.scale <= data_type.precision:
        return DecimalType(data_type.precision, data_type.scale)
    if pa.types.is_timestamp(data_type) and data_type.unit != "ns":
        return TimestamptzType() if data_type.tz else TimestampType()
    if pa.types.is_struct(data_type) and data_type.num_fields:
        return StructType(*[_nested_field(child, next_id) for child in data_type])
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return ListType(next_id(), _iceberg_type(data_type.value_type, next_id), element_required=False)
    if pa.types.is_map(data_type):
        key = next_id(), _iceberg_type(data_type.key_type, next_id)
        return MapType(*key, next_id(), _iceberg_type(data_type.item_type, next_id), value_required=False)
    raise _NoSuchTypeError("Iceberg has no such type")


# For the files ------------------------------------------------------------------------------------


def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns of the data files. Each field, including nested ones, has its field id as metadata."""
    return pa.schema(_arrow_fields(schema.fields))


def _arrow_fields(fields: Iterable[NestedField]) -> list[pa.Field]:
    return [_field(field.name, field.field_type, field.required, field.field_id) for field in fields]


def _field(name: str, data_type: IcebergType, required: bool, field_id: int) -> pa.Field:
    metadata = {FIELD_ID_KEY: str(field_id).encode()}
    return pa.field(name, arrow_type(data_type), nullable=not required, metadata=metadata)


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


def arrow_type(data_type: IcebergType) -> pa.DataType:
    """The type of a column in the files. Columns that are not in the query contain only NULLs."""
    if isinstance(data_type, StructType):
        return pa.struct(_arrow_fields(data_type.fields))
    if isinstance(data_type, ListType):
        return pa.list_(
            _field("element", data_type.element_type, data_type.element_required, data_type.element_id)
        )
    if isinstance(data_type, MapType):
        key = _field("key", data_type.key_type, True, data_type.key_id)
        return pa.map_(
            key, _field("value", data_type.value_type, data_type.value_required, data_type.value_id)
        )
    if isinstance(data_type, DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if isinstance(data_type, FixedType):
        return pa.binary(len(data_type))
    return _ARROW_TYPES[data_type]
