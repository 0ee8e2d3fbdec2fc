"""Matches a query's columns with an Iceberg table's by name, when a batch is planned.

Pure: takes schemas, returns schemas or raises an error. After a batch is written, its columns are matched by
field id: see `file_schema_check`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
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
from ..file_tables.evolution import Evolution, Narrowing
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
    altered: tuple[str, ...] = ()
    """Dotted names of the columns whose type is widened, or that become nullable."""
    renames: tuple[tuple[str, str], ...] = ()
    """Dotted names of the columns that are renamed, and their last names in the table."""


def match(
    source: pa.Schema,
    table: Schema,
    last_column_id: int,
    *,
    evolution: Evolution,
    table_name: str,
    narrows: Narrowing = Narrowing.NONE,
    kept_types: Collection[int] = (),
) -> IcebergMatch:
    """Match the query's columns with the table's by name, ignoring case, at every level.

    Types are widened by Iceberg's promotions: int to long, float to double, decimals to a higher precision.
    New columns get the next field ids.

    Args:
        last_column_id: the highest field id that the table has ever assigned
        evolution: what may change
        narrows: integers and decimals may also have larger types; the writer checks each value
        kept_types: field ids of columns whose type is not changed

    Raises:
        SchemaMismatchError: lists the columns that do not fit and shows both schemas.
    """
    given = columns_of(iceberg_struct(source, table_name))
    renamed, renames = _renamed(table, evolution.renames, table_name)
    wanted = columns_of(renamed)
    differences = list(compare(given, wanted, widens))
    identifiers = table.identifier_field_ids
    alterations = {
        column.field_id: altered
        for found in differences
        for column in found.table[:1]
        if (altered := _alteration(found, evolution, identifiers, kept_types)) is not None
    }
    taken = frozenset(name.lower() for name in index_by_name(Schema(*renamed.fields)))
    kept = [found for found in differences if not _is_settled(found, alterations, narrows)]
    problems = list(_problems(kept, evolution, taken))
    if problems:
        raise query_mismatch(f"Iceberg table {table_name}", problems, given, wanted)
    ids = itertools.count(last_column_id + 1)
    new = {
        found.parent: [_new_field(column, lambda: next(ids)) for column in found.given]
        for found in kept
        if found.kind is DifferenceKind.NEW
    }
    if not (new or alterations or renames):
        return IcebergMatch(table, ())
    RESERVED.check([column.name for column in new.get((), ())], f"Iceberg table {table_name}")
    struct = _rebuilt(renamed, new, alterations)
    check_names(struct, table_name)
    schema = Schema(*struct.fields, schema_id=table.schema_id, identifier_field_ids=identifiers)
    new_ids = [column.field_id for columns in new.values() for column in columns]
    return IcebergMatch(
        schema,
        tuple(_name_of(schema, field_id) for field_id in new_ids),
        tuple(_name_of(schema, field_id) for field_id in alterations),
        tuple((_name_of(schema, field_id), name) for field_id, name in renames.items()),
    )


@dataclass(frozen=True, slots=True)
class _Alteration:
    """What a column becomes."""

    type: IcebergType | None = None
    """None: its type stays."""
    is_optional: bool = False


def _alteration(
    found: Difference[IcebergType, IcebergType],
    evolution: Evolution,
    identifiers: Collection[int],
    kept_types: Collection[int],
) -> _Alteration | None:
    """Return how the table's column gets to hold the query's; None if it does not."""
    if found.kind not in _ALTERED or found.is_in_key:
        return None
    column = found.table[0]
    if found.kind is DifferenceKind.TYPE:
        given = found.given[0].type
        is_widened = column.field_id not in kept_types and widens(column.type, given)
        if not is_widened or not evolution.may_alter(found.parent, column.name):
            return None
        is_optional = column.is_required and evolution.relaxes(found.parent, column.name)
        return _Alteration(given, is_optional and column.field_id not in identifiers)
    if column.field_id in identifiers or not evolution.relaxes(found.parent, column.name):
        return None
    return _Alteration(is_optional=True)


_ALTERED = (DifferenceKind.NULLS, DifferenceKind.TYPE, DifferenceKind.REQUIRED)


def _is_settled(
    found: Difference[IcebergType, IcebergType],
    alterations: Mapping[int, _Alteration],
    narrows: Narrowing,
) -> bool:
    """Return True if the difference is none after the batch, or if the writer checks each value."""
    if narrows is Narrowing.ANY and found.kind in (DifferenceKind.TYPE, DifferenceKind.NEW):
        return True
    altered = alterations.get(found.table[0].field_id) if found.table else None
    if found.kind is DifferenceKind.TYPE:
        is_checked = narrows is not Narrowing.NONE and _may_fit(found.given[0].type, found.table[0].type)
        return is_checked or (altered is not None and altered.type is not None)
    return found.kind in _ALTERED and altered is not None


def _renamed(
    table: Schema, renames: Sequence[tuple[str, str]], table_name: str
) -> tuple[StructType, dict[int, str]]:
    """Return the table's columns with their new names, and the names that they have now, by field id.

    Raises:
        SchemaMismatchError: there is no such column, or the new name is another one's.
    """
    paths = {path: field_id for field_id, path in paths_of(table).items()}
    named: dict[int, str] = {}
    for old, new in renames:
        given = tuple(old.split("."))
        both = {given, _through_renamed(given, dict(renames))}
        before = next((paths[path] for path in both if path in paths), None)
        after = next((paths[path] for *rest, _ in both if (path := (*rest, new)) in paths), None)
        if before is None and after is not None:
            continue  # an earlier batch has renamed it
        if before is None or after is not None:
            what = "has both columns" if before is not None else "has neither of the columns"
            raise SchemaMismatchError(
                f"renameColumns={old}:{new}: the Iceberg table {table_name} {what}. Nothing was written. "
                "Correct the option."
            )
        named[before] = new
    names = {field_id: table.find_field(field_id).name for field_id in named}
    return _rebuilt(table.as_struct(), {}, {}, named), names


def _through_renamed(path: tuple[str, ...], renames: Mapping[str, str]) -> tuple[str, ...]:
    """The path after the structs above the column have their new names."""
    above = [renames.get(".".join(path[: number + 1]), path[number]) for number in range(len(path) - 1)]
    return (*above, path[-1])


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
    differences: Sequence[Difference[IcebergType, IcebergType]], evolution: Evolution, taken: Collection[str]
) -> Iterator[str]:
    for found in differences:
        # Map keys never get new fields: that would change which keys are equal.
        is_refused = not evolution.adds or found.is_in_key
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


def _rebuilt(
    struct: StructType,
    new: Mapping[tuple[str, ...], Sequence[NestedField]],
    alterations: Mapping[int, _Alteration],
    names: Mapping[int, str] = MappingProxyType({}),
    path: tuple[str, ...] = (),
) -> StructType:
    """The struct at `path` with the changes of its columns, and the new fields appended to each struct in it.

    Args:
        new: by the path of their struct
        alterations: by field id
        names: new names, by field id
    """

    def inside(data_type: IcebergType, path: tuple[str, ...]) -> IcebergType:
        if isinstance(data_type, StructType):
            return _rebuilt(data_type, new, alterations, names, path)
        if isinstance(data_type, ListType):
            element = changed(data_type.element_field, path)
            return ListType(data_type.element_id, element.field_type, element.required)
        if isinstance(data_type, MapType):
            value = changed(data_type.value_field, path)
            key = inside(data_type.key_type, (*path, "key"))
            return MapType(data_type.key_id, key, data_type.value_id, value.field_type, value.required)
        return data_type

    def changed(column: NestedField, path: tuple[str, ...]) -> NestedField:
        altered = alterations.get(column.field_id, _Alteration())
        return NestedField(
            column.field_id,
            names.get(column.field_id, column.name),
            altered.type or inside(column.field_type, (*path, column.name)),
            required=column.required and not altered.is_optional,
            doc=column.doc,
            initial_default=column.initial_default,
            write_default=column.write_default,
        )

    fields = [changed(column, path) for column in struct.fields]
    return StructType(*fields, *new.get(path, ()))


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
