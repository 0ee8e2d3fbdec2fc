"""Matches a query's columns with an Iceberg table's by name, when a batch is planned.

Pure: takes schemas, returns schemas or raises an error. After a batch is written, its columns are matched by
field id: see `file_schema_check`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyiceberg.schema import Schema, assign_fresh_schema_ids, index_by_name
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from ..errors import SchemaMismatchError
from ..file_tables.reserved_names import ReservedNames
from ..file_tables.schema_diff import (
    NOT_ADDED,
    QUERY,
    Difference,
    DifferenceKind,
    SchemaColumn,
    compare,
    dotted,
    problems_in,
    query_mismatch,
)
from .arrow import iceberg_struct


@dataclass(frozen=True, slots=True)
class IcebergMatch:
    """The result of matching a query's columns with a table's."""

    schema: Schema
    """All columns of the files: the table's, then the new ones."""
    new_columns: tuple[str, ...]
    """Dotted names of the new columns, ordered by field id; a struct implies its fields."""


def match(
    source: pa.Schema,
    table: Schema,
    last_column_id: int,
    *,
    evolve: bool,
    table_name: str,
    narrows: bool = False,
) -> IcebergMatch:
    """Match the query's columns with the table's by name, ignoring case, at every level.

    Types are widened by Iceberg's promotions: int to long, float to double, decimals to a higher precision.
    New columns get the next field ids.

    Args:
        last_column_id: the highest field id that the table has ever assigned
        evolve: new columns are allowed
        narrows: integers and decimals may also have larger types; the writer checks each value

    Raises:
        SchemaMismatchError: lists the columns that do not fit and shows both schemas.
    """
    given, wanted = columns_of(iceberg_struct(source, table_name)), columns_of(table.as_struct())
    differences = list(compare(given, wanted, _may_fit if narrows else widens))
    taken = frozenset(name.lower() for name in index_by_name(table))
    problems = list(_problems(differences, evolve, taken))
    if problems:
        raise query_mismatch(f"Iceberg table {table_name}", problems, given, wanted)
    ids = itertools.count(last_column_id + 1)
    new = {
        found.parent: [_new_field(column, lambda: next(ids)) for column in found.given]
        for found in differences
        if found.kind is DifferenceKind.NEW
    }
    if not new:
        return IcebergMatch(table, ())
    RESERVED.check([column.name for column in new.get((), ())], f"Iceberg table {table_name}")
    struct = _with_new(table.as_struct(), new)
    check_names(struct, table_name)
    schema = Schema(
        *struct.fields, schema_id=table.schema_id, identifier_field_ids=table.identifier_field_ids
    )
    new_ids = [column.field_id for columns in new.values() for column in columns]
    return IcebergMatch(schema, tuple(_name_of(schema, field_id) for field_id in new_ids))


RESERVED = ReservedNames(
    "readers have columns of their own with these names, and Iceberg's connector for Spark cannot read a "
    "table that has them",
    frozenset(
        {
            "_file",
            "_pos",
            "_deleted",
            "_spec_id",
            "_partition",
            "_row_id",
            "_last_updated_sequence_number",
        }
    ),
)
"""The metadata columns of a scan. Those of a changelog, such as `_change_type`, do not prevent reading."""


def check_names(struct: StructType, table_name: str) -> None:
    """Reject columns with the same dotted name, for example 'a.b' and a struct 'a' with a field 'b'.

    Case is ignored, as engines do.

    Raises:
        SchemaMismatchError: names them.
    """
    names = [".".join(path) for _, path in _paths(struct.fields, ())]
    counts = Counter(name.lower() for name in names)
    alike = [name for name in names if counts[name.lower()] > 1]
    if alike:
        raise SchemaMismatchError(
            f"The Iceberg table {table_name} cannot distinguish these columns: "
            f"{', '.join(map(repr, alike))}. A column name with dots must not equal the path of another "
            "column. Rename columns in the query. Nothing was written."
        )


def _name_of(schema: Schema, field_id: int) -> str:
    name = schema.find_column_name(field_id)
    assert name is not None, f"field {field_id} was assigned there"
    return name


_EVOLVING: Mapping[DifferenceKind, str] = {
    difference: words for difference, words in QUERY.items() if difference is not DifferenceKind.NEW
}


def _problems(
    differences: Sequence[Difference[IcebergType, IcebergType]], evolve: bool, taken: Collection[str]
) -> Iterator[str]:
    for found in differences:
        # Map keys never get new fields: that would change which keys are equal.
        is_refused = not evolve or found.is_in_key
        wording = QUERY if is_refused else _EVOLVING
        yield from problems_in([found], {**wording, **NOT_ADDED} if found.is_in_key else wording)
        if found.kind is DifferenceKind.NEW and not is_refused:
            names = [dotted(found.parent, column) for column in found.given]
            yield from (
                f"{name!r} would have the same name as the path of another column"
                for name in names
                if name.lower() in taken
            )


def _new_field(column: SchemaColumn[IcebergType], next_id: Callable[[], int]) -> NestedField:
    """New fields with ids in the order of pyiceberg's `UpdateSchema.add_column`."""
    field_id = next_id()
    data_type = cast("IcebergType", assign_fresh_schema_ids(column.type, next_id))
    return NestedField(field_id, column.name, data_type, required=False)


def _with_new(
    struct: StructType, new: Mapping[tuple[str, ...], Sequence[NestedField]], path: tuple[str, ...] = ()
) -> StructType:
    """The struct at `path`, with the new fields appended to each struct in it."""

    def grown(data_type: IcebergType, path: tuple[str, ...]) -> IcebergType:
        if isinstance(data_type, StructType):
            return _with_new(data_type, new, path)
        if isinstance(data_type, ListType):
            element = grown(data_type.element_type, (*path, "element"))
            return ListType(data_type.element_id, element, data_type.element_required)
        if isinstance(data_type, MapType):
            value = grown(data_type.value_type, (*path, "value"))
            return MapType(
                data_type.key_id, data_type.key_type, data_type.value_id, value, data_type.value_required
            )
        return data_type

    fields = [_with_type(column, grown(column.field_type, (*path, column.name))) for column in struct.fields]
    return StructType(*fields, *new.get(path, ()))


def _with_type(column: NestedField, data_type: IcebergType) -> NestedField:
    return NestedField(
        column.field_id,
        column.name,
        data_type,
        required=column.required,
        doc=column.doc,
        initial_default=column.initial_default,
        write_default=column.write_default,
    )


def widens(given: IcebergType, wanted: IcebergType) -> bool:
    """Return True if every value of the primitive type `given` can be read as `wanted` (Iceberg's
    promotions).
    """
    if isinstance(given, IntegerType) and isinstance(wanted, LongType):
        return True
    if isinstance(given, FloatType) and isinstance(wanted, DoubleType):
        return True
    if isinstance(given, DecimalType) and isinstance(wanted, DecimalType):
        return given.scale == wanted.scale and given.precision <= wanted.precision
    return given.is_primitive and given == wanted


def _may_fit(given: IcebergType, wanted: IcebergType) -> bool:
    """Return True if some values of `given` can be written as `wanted`."""
    both = (given, wanted)
    return (
        widens(given, wanted)
        or all(isinstance(one, IntegerType | LongType) for one in both)
        or all(isinstance(one, DecimalType) for one in both)
    )


def fields_of(data_type: IcebergType) -> Sequence[NestedField]:
    """The direct fields of a type; none for a primitive type."""
    if isinstance(data_type, StructType):
        return data_type.fields
    if isinstance(data_type, ListType):
        return (data_type.element_field,)
    if isinstance(data_type, MapType):
        return (data_type.key_field, data_type.value_field)
    return ()


def column_path(schema: Schema, name: str) -> tuple[str, ...]:
    """The parts of a column's dotted name, as needed by `UpdateSchema.add_column`: names may contain dots."""
    return paths_of(schema)[schema.find_field(name).field_id]


def paths_of(schema: Schema) -> dict[int, tuple[str, ...]]:
    """The path of every field, including nested ones, by its field id."""
    return dict(_paths(schema.fields, ()))


def _paths(fields: Sequence[NestedField], prefix: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for inner in fields:
        path = (*prefix, inner.name)
        yield inner.field_id, path
        yield from _paths(fields_of(inner.field_type), path)


def columns_of(data_type: IcebergType) -> tuple[SchemaColumn[IcebergType], ...]:
    """The direct fields of a type, in the form in which they are compared."""
    return tuple(
        SchemaColumn(
            inner.name,
            inner.field_type,
            inner.required,
            nesting=_NESTING.get(type(inner.field_type), ""),
            children=columns_of(inner.field_type),
            field_id=inner.field_id,
        )
        for inner in fields_of(data_type)
    )


_NESTING: Mapping[type[IcebergType], str] = {StructType: "struct", ListType: "list", MapType: "map"}
