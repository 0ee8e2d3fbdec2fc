"""How a query's columns map onto an Iceberg table's: by name, when a batch is planned.

Pure: schemas in, schemas or an error out. Once a batch is written, its columns go by field id: see `fit.py`.
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
from ..schema_diff import (
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
    """A query's columns laid over a table's."""

    schema: Schema
    """All columns of the files: the table's, then the new ones."""
    new_columns: tuple[str, ...]
    """Dotted names of the new ones in the order of their field ids; a struct stands for its fields."""


def match(
    source: pa.Schema, table: Schema, last_column_id: int, *, evolve: bool, table_name: str
) -> IcebergMatch:
    """Lay the query's columns over the table's, by name, case ignored, at every level.

    Types are widened as Iceberg promotes them: int to long, float to double, decimals to more digits. New
    columns get the field ids that Iceberg gives next.

    Args:
        last_column_id: the highest field id that the table has ever given
        evolve: may there be new columns?

    Raises:
        SchemaMismatchError: says which columns do not fit and shows both schemas.
    """
    given, wanted = columns_of(iceberg_struct(source, table_name)), columns_of(table.as_struct())
    differences = list(compare(given, wanted, widens))
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
    struct = _with_new(table.as_struct(), new)
    check_names(struct, table_name)
    schema = Schema(
        *struct.fields, schema_id=table.schema_id, identifier_field_ids=table.identifier_field_ids
    )
    new_ids = [column.field_id for columns in new.values() for column in columns]
    return IcebergMatch(schema, tuple(_name_of(schema, field_id) for field_id in new_ids))


def check_names(struct: StructType, table_name: str) -> None:
    """Refuse columns whose dotted names are the same, such as 'a.b' beside a struct 'a' with a field 'b'.

    Without case, for that is how engines look them up.

    Raises:
        SchemaMismatchError: names them.
    """
    names = [".".join(path) for _, path in _paths(struct.fields, ())]
    counts = Counter(name.lower() for name in names)
    alike = [name for name in names if counts[name.lower()] > 1]
    if alike:
        raise SchemaMismatchError(
            f"The Iceberg table {table_name} cannot tell these columns apart: "
            f"{', '.join(map(repr, alike))}. A name with dots in it may not be the path to another column. "
            "Rename columns in the query. Nothing was written."
        )


def _name_of(schema: Schema, field_id: int) -> str:
    name = schema.find_column_name(field_id)
    assert name is not None, f"field {field_id} was put there"
    return name


_EVOLVING: Mapping[DifferenceKind, str] = {
    kind: words for kind, words in QUERY.items() if kind is not DifferenceKind.NEW
}


def _problems(
    differences: Sequence[Difference[IcebergType, IcebergType]], evolve: bool, taken: Collection[str]
) -> Iterator[str]:
    for found in differences:
        # Keys of a map never get new fields: that would change which keys are equal.
        is_refused = not evolve or found.is_in_key
        yield from problems_in([found], QUERY if is_refused else _EVOLVING)
        if found.kind is DifferenceKind.NEW and not is_refused:
            names = [dotted(found.parent, column) for column in found.given]
            yield from (
                f"{name!r} would be called like the path to another column"
                for name in names
                if name.lower() in taken
            )


def _new_field(column: SchemaColumn[IcebergType], next_id: Callable[[], int]) -> NestedField:
    """With field ids in the order in which pyiceberg's `UpdateSchema.add_column` gives them."""
    field_id = next_id()
    kind = cast("IcebergType", assign_fresh_schema_ids(column.type, next_id))
    return NestedField(field_id, column.name, kind, required=False)


def _with_new(
    struct: StructType, new: Mapping[tuple[str, ...], Sequence[NestedField]], path: tuple[str, ...] = ()
) -> StructType:
    """The struct at `path`, with the new fields at the end of each struct in it."""

    def grown(kind: IcebergType, path: tuple[str, ...]) -> IcebergType:
        if isinstance(kind, StructType):
            return _with_new(kind, new, path)
        if isinstance(kind, ListType):
            element = grown(kind.element_type, (*path, "element"))
            return ListType(kind.element_id, element, kind.element_required)
        if isinstance(kind, MapType):
            value = grown(kind.value_type, (*path, "value"))
            return MapType(kind.key_id, kind.key_type, kind.value_id, value, kind.value_required)
        return kind

    fields = [_with_type(column, grown(column.field_type, (*path, column.name))) for column in struct.fields]
    return StructType(*fields, *new.get(path, ()))


def _with_type(column: NestedField, kind: IcebergType) -> NestedField:
    return NestedField(
        column.field_id,
        column.name,
        kind,
        required=column.required,
        doc=column.doc,
        initial_default=column.initial_default,
        write_default=column.write_default,
    )


def widens(given: IcebergType, wanted: IcebergType) -> bool:
    """Can every value of the primitive type `given` be read as `wanted`? Iceberg's promotions."""
    if isinstance(given, IntegerType) and isinstance(wanted, LongType):
        return True
    if isinstance(given, FloatType) and isinstance(wanted, DoubleType):
        return True
    if isinstance(given, DecimalType) and isinstance(wanted, DecimalType):
        return given.scale == wanted.scale and given.precision <= wanted.precision
    return given.is_primitive and given == wanted


def fields_of(kind: IcebergType) -> Sequence[NestedField]:
    """The fields right inside a type; none inside a primitive one."""
    if isinstance(kind, StructType):
        return kind.fields
    if isinstance(kind, ListType):
        return (kind.element_field,)
    if isinstance(kind, MapType):
        return (kind.key_field, kind.value_field)
    return ()


def column_path(schema: Schema, name: str) -> tuple[str, ...]:
    """The parts of a column's dotted name, as `UpdateSchema.add_column` takes them: names may hold dots."""
    return paths_of(schema)[schema.find_field(name).field_id]


def paths_of(schema: Schema) -> dict[int, tuple[str, ...]]:
    """The path of every field, however deep, by its field id."""
    return dict(_paths(schema.fields, ()))


def _paths(fields: Sequence[NestedField], prefix: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for inner in fields:
        path = (*prefix, inner.name)
        yield inner.field_id, path
        yield from _paths(fields_of(inner.field_type), path)


def columns_of(kind: IcebergType) -> tuple[SchemaColumn[IcebergType], ...]:
    """The fields right inside a type, as they are compared."""
    return tuple(
        SchemaColumn(
            inner.name,
            inner.field_type,
            inner.required,
            nesting=_NESTING.get(type(inner.field_type), ""),
            children=columns_of(inner.field_type),
            field_id=inner.field_id,
        )
        for inner in fields_of(kind)
    )


_NESTING: Mapping[type[IcebergType], str] = {StructType: "struct", ListType: "list", MapType: "map"}
