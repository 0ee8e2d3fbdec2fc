"""How a query's columns map onto an Iceberg table's: by name, when a batch is planned.

Pure: schemas in, schemas or an error out. Once a batch is written, its columns go by field id: see `fit.py`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
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
from .arrow import iceberg_struct


@dataclass(frozen=True, slots=True)
class Match:
    """A query's columns laid over a table's."""

    schema: Schema
    """All columns of the files: the table's, then the new ones."""
    new_columns: tuple[str, ...]
    """Dotted names of the new ones in the order of their field ids; a struct stands for its fields."""


def match(source: pa.Schema, table: Schema, last_column_id: int, *, evolve: bool, table_name: str) -> Match:
    """Lay the query's columns over the table's, by name, case ignored, at every level.

    Types are widened as Iceberg promotes them: int to long, float to double, decimals to more digits. New
    columns get the field ids that Iceberg gives next.

    Args:
        last_column_id: the highest field id that the table has ever given
        evolve: may there be new columns?

    Raises:
        SchemaMismatchError: says which columns do not fit and shows both schemas.
    """
    given = iceberg_struct(source, table_name)
    ids = itertools.count(last_column_id + 1)
    taken = frozenset(name.lower() for name in index_by_name(table))
    laying = _Laying(evolve=evolve, next_id=lambda: next(ids), taken=taken)
    fields = laying.over_struct(given, table.as_struct(), "")
    if laying.problems:
        lines = "\n".join(f"  - {problem}" for problem in laying.problems)
        raise SchemaMismatchError(
            f"The query's rows do not fit the Iceberg table {table_name}:\n{lines}\n"
            f"  The query has:\n{describe(given)}\n  The table has:\n{describe(table.as_struct())}\n"
            "Select, rename or cast the columns in the query, or alter the table. Nothing was written."
        )
    if laying.new_ids:
        check_names(fields, table_name)
    schema = Schema(
        *fields.fields, schema_id=table.schema_id, identifier_field_ids=table.identifier_field_ids
    )
    return Match(schema, tuple(_name_of(schema, field_id) for field_id in laying.new_ids))


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


@dataclass
class _Laying:
    """Lays one schema over another, level by level; gathers what does not fit."""

    evolve: bool
    next_id: Callable[[], int]
    taken: Collection[str] = frozenset()
    """Dotted names of the table's columns in lower case, also without the parts `element` and `value`."""
    problems: list[str] = field(default_factory=list)
    new_ids: list[int] = field(default_factory=list)

    def over_struct(self, given: StructType, table: StructType, prefix: str) -> StructType:
        """The table's struct with the new fields at its end."""
        by_target = self._by_target(given, table, prefix)
        fields = []
        for target in table.fields:
            path, sources = prefix + target.name, by_target.pop(target.name, [])
            if len(sources) > 1:
                self.problems.append(f"{_quoted(prefix, sources)} differ by case only, and fit {path!r} both")
            if not sources and target.required:
                self.problems.append(f"{path!r} is NOT NULL in the table and missing in the query")
            kind = self.over(sources[0].field_type, target.field_type, path) if sources else target.field_type
            fields.append(_with_type(target, kind))
        new = [source for sources in by_target.values() for source in sources]
        if new and not self.evolve:
            where = f"{prefix[:-1]!r} of the table" if prefix else "the table"
            self.problems.append(
                f"{where} has no column {_quoted(prefix, new)} (schemaEvolution=addColumns would add it)"
            )
            return StructType(*fields)
        self.problems += [
            f"{prefix + source.name!r} would be called like the path to another column"
            for source in new
            if (prefix + source.name).lower() in self.taken
        ]
        return StructType(*fields, *[self._new_field(source) for source in new])

    def _by_target(self, given: StructType, table: StructType, prefix: str) -> dict[str, list[NestedField]]:
        """The query's fields by the name of the table's that each goes to, or else by a name of their own."""
        exact = {source.name for source in given.fields} & {target.name for target in table.fields}
        others = [target.name for target in table.fields if target.name not in exact]
        found: dict[str, list[NestedField]] = {}
        for source in given.fields:
            alike = [name for name in others if name.lower() == source.name.lower()]
            if source.name not in exact and len(alike) > 1:
                self.problems.append(
                    f"{prefix + source.name!r} fits {', '.join(map(repr, alike))} of the table"
                )
            target = source.name if source.name in exact or not alike else alike[0]
            found.setdefault(target, []).append(source)
        self._refuse_alike(given, table, exact, prefix)
        return found

    def _refuse_alike(self, given: StructType, table: StructType, exact: set[str], prefix: str) -> None:
        """No new column may differ from another one, new or old, by case only."""
        old = {target.name.lower() for target in table.fields}
        taken = {name.lower() for name in exact}
        free = [source for source in given.fields if source.name not in exact]
        counts = Counter(source.name.lower() for source in free if source.name.lower() not in old)
        for source in free:
            if source.name.lower() in taken or counts[source.name.lower()] > 1:
                self.problems.append(f"{prefix + source.name!r} differs from another column by case only")

    def _new_field(self, source: NestedField) -> NestedField:
        """With field ids in the order in which pyiceberg's `UpdateSchema.add_column` gives them."""
        field_id = self.next_id()
        self.new_ids.append(field_id)
        kind = cast("IcebergType", assign_fresh_schema_ids(source.field_type, self.next_id))
        return NestedField(field_id, source.name, kind, required=False)

    def over(self, given: IcebergType, table: IcebergType, path: str) -> IcebergType:
        """The table's type, with new fields in the structs inside it."""
        if isinstance(given, StructType) and isinstance(table, StructType):
            return self.over_struct(given, table, f"{path}.")
        if isinstance(given, ListType) and isinstance(table, ListType):
            element = self.over(given.element_type, table.element_type, f"{path}.element")
            return ListType(table.element_id, element, table.element_required)
        if isinstance(given, MapType) and isinstance(table, MapType):
            self._over_key(given.key_type, table.key_type, f"{path}.key")
            value = self.over(given.value_type, table.value_type, f"{path}.value")
            return MapType(table.key_id, table.key_type, table.value_id, value, table.value_required)
        if not widens(given, table):
            self.problems.append(
                f"{path!r} is {type_name(table)} in the table and {type_name(given)} in the query"
            )
        return table

    def _over_key(self, given: IcebergType, table: IcebergType, path: str) -> None:
        """Keys of a map never get new fields: that would change which keys are equal."""
        laying = _Laying(evolve=False, next_id=self.next_id)
        laying.over(given, table, path)
        self.problems += laying.problems


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


def _quoted(prefix: str, fields: Sequence[NestedField]) -> str:
    return ", ".join(repr(prefix + field.name) for field in fields)


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


# In words -----------------------------------------------------------------------------------------


def type_name(kind: IcebergType) -> str:
    if isinstance(kind, ListType):
        return f"list<{type_name(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{type_name(kind.key_type)}, {type_name(kind.value_type)}>"
    if isinstance(kind, StructType):
        return (
            "struct<" + ", ".join(f"{part.name}: {type_name(part.field_type)}" for part in kind.fields) + ">"
        )
    return str(kind)


def describe(struct: StructType) -> str:
    """One line a column, for messages."""
    return "\n".join(
        f"    {column.name}: {type_name(column.field_type)}{' NOT NULL' if column.required else ''}"
        for column in struct.fields
    )
