"""Compares the columns of a query, or of files, with those of a Delta table, and merges them.

Pure: takes schemas in Delta's own JSON, returns schemas or raises an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..file_tables.evolution import Evolution, Narrowing
from ..file_tables.manifest import LakeManifest
from ..file_tables.schema_diff import (
    FILES,
    NOT_ADDED,
    QUERY,
    Difference,
    DifferenceKind,
    SchemaColumn,
    by_name,
    compare,
    dotted,
    files_mismatch,
    problems_in,
    query_mismatch,
    without_case,
)
from .table_state import DeltaTableState

TYPE_CHANGES = "delta.typeChanges"
"""Metadata of a column whose type was widened."""
WIDENING_PROPERTY = "delta.enableTypeWidening"

Fields = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SchemaChanges:
    """What a commit changes in the schema of the table. All names are dotted paths."""

    new_columns: tuple[str, ...] = ()
    """At the top level."""
    new_fields: tuple[str, ...] = ()
    """Inside of columns."""
    retyped: tuple[str, ...] = ()
    """Columns that get the wider type of the rows."""
    relaxed: tuple[str, ...] = ()
    """Columns that are NOT NULL in the table and become nullable."""

    def __bool__(self) -> bool:
        return bool(self.new_columns or self.altered)

    def of(self, kind: DifferenceKind) -> tuple[str, ...]:
        """Return the columns that are changed because of this kind of difference."""
        if kind is DifferenceKind.NEW:
            return (*self.new_columns, *self.new_fields)
        return self.retyped if kind is DifferenceKind.TYPE else self.relaxed

    @property
    def altered(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.new_fields, *self.retyped, *self.relaxed)))


def fields_of(schema_json: str) -> list[dict[str, Any]]:
    """The top-level fields of a schema in Delta's JSON."""
    fields: list[dict[str, Any]] = json.loads(schema_json)["fields"]
    return fields


def is_widening(table: DeltaTableState) -> bool:
    """Return True if commits may widen types in the table."""
    is_on = table.metadata().configuration.get(WIDENING_PROPERTY, "false").strip().lower() == "true"
    return is_on and "typeWidening" in (table.protocol().writer_features or ())


# The columns of a query ---------------------------------------------------------------------------


def match(
    source: Fields,
    table: Fields,
    *,
    evolution: Evolution,
    table_uri: str,
    widens: bool = False,
    narrows: Narrowing = Narrowing.NONE,
) -> SchemaChanges:
    """Match the source's Delta fields with the table's by name, ignoring case, at every level.

    Args:
        evolution: what may change
        widens: types may be widened
        narrows: columns of the source may have types of which only some values fit; the writer checks each
            value

    Raises:
        SchemaMismatchError: lists the columns that do not fit and shows both schemas.
    """
    given, wanted = _columns(source), _columns(table)
    holds = _widens if evolution.alters else _never
    differences = list(compare(given, wanted, holds))
    changes = _changes(differences, lambda found: _may_change(found, evolution, widens=widens))
    problems = [
        problem
        for found in differences
        if not _is_settled(found, changes, narrows)
        for problem in problems_in([found], _wording(found, evolution))
    ]
    if problems:
        raise query_mismatch(f"Delta table {table_uri}", problems, given, wanted)
    return changes


_QUERY: Mapping[DifferenceKind, str] = {
    **QUERY,
    DifferenceKind.CASE: "{names} and another column of the query differ only in case",
}
_NOT_WIDENED = (
    "{columns} is {table} in the table and {given} in the query, and the table does not widen types: "
    "typeWidening=true would allow it (the Delta library and Polars then no longer read the table)"
)


def _wording(found: Difference[str, str], evolution: Evolution) -> Mapping[DifferenceKind, str]:
    if found.is_in_key:
        return {**_QUERY, **NOT_ADDED}
    if found.kind is DifferenceKind.TYPE and _is_widened(found, evolution):
        return {**_QUERY, DifferenceKind.TYPE: _NOT_WIDENED}
    return _QUERY


def _may_change(found: Difference[str, str], evolution: Evolution, *, widens: bool) -> bool:
    if found.is_in_key:  # that would change which keys are equal
        return False
    if found.kind is DifferenceKind.NEW:
        return evolution.adds
    if found.kind is DifferenceKind.TYPE:
        return widens and _is_widened(found, evolution)
    return evolution.relaxes(found.parent, found.table[0].name)


def _is_widened(found: Difference[str, str], evolution: Evolution) -> bool:
    may_alter = evolution.may_alter(found.parent, found.table[0].name)
    return may_alter and _widens(found.table[0].type, found.given[0].type)


def _is_settled(found: Difference[str, str], changes: SchemaChanges, narrows: Narrowing) -> bool:
    """Return True if the difference is none after the batch, or if the writer checks each value."""
    if found.kind in (DifferenceKind.NEW, DifferenceKind.TYPE) and narrows is Narrowing.ANY:
        return True
    if found.kind is DifferenceKind.TYPE and narrows is Narrowing.NUMBERS:
        given, table = found.given[0], found.table[0]
        if not given.nesting and not table.nesting and _family(given.type) == _family(table.type):
            return True
    return found.kind in _CHANGED and set(_names(found)) <= set(changes.of(found.kind))


def _family(name: str) -> str:
    """The type without its size."""
    if name in _INTEGERS:
        return "integer"
    return "decimal" if name.startswith("decimal(") else name


_INTEGERS = ("byte", "short", "integer", "long")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def _widens(narrow: str, wide: str) -> bool:
    """Return True if the first type may be widened to the second one, as far as all formats can do it, or
    Delta alone for the scale of decimals.
    """
    if narrow in _INTEGERS and wide in _INTEGERS:
        return _INTEGERS.index(narrow) < _INTEGERS.index(wide)
    one, other = _DECIMAL.fullmatch(narrow), _DECIMAL.fullmatch(wide)
    if one and other:
        more_scale = int(other[2]) - int(one[2])
        return int(other[1]) - int(one[1]) >= more_scale >= 0
    return (narrow, wide) == ("float", "double")


def _never(_: str, __: str) -> bool:
    return False


# Changes ------------------------------------------------------------------------------------------

_CHANGED = (DifferenceKind.NEW, DifferenceKind.TYPE, DifferenceKind.NULLS, DifferenceKind.REQUIRED)


def _names(found: Difference[str, str]) -> list[str]:
    columns = found.given if found.kind is DifferenceKind.NEW else found.table
    return [dotted(found.parent, column) for column in columns]


def _changes(
    differences: Iterable[Difference[str, str]], may_change: Callable[[Difference[str, str]], bool]
) -> SchemaChanges:
    """Return the changes of the table that settle the differences, as far as they are allowed."""
    names: dict[DifferenceKind, list[str]] = {kind: [] for kind in _CHANGED}
    new_columns: list[str] = []
    for found in differences:
        if found.kind in _CHANGED and may_change(found):
            is_new_column = found.kind is DifferenceKind.NEW and not found.parent
            (new_columns if is_new_column else names[found.kind]).extend(_names(found))
    return SchemaChanges(
        tuple(new_columns),
        tuple(names[DifferenceKind.NEW]),
        tuple(names[DifferenceKind.TYPE]),
        (*names[DifferenceKind.NULLS], *names[DifferenceKind.REQUIRED]),
    )


def changed_fields(
    table: Fields, source: Fields, changes: SchemaChanges, path: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """Return the fields of the table after the changes, new ones last.

    Args:
        source: has the new columns and types
    """
    key = without_case((field["name"] for field in source), (field["name"] for field in table))
    given = {key(field["name"]): field for field in source}
    fields = []
    for field in table:
        found, own = given.pop(key(field["name"]), None), (*path, field["name"])
        types: list[dict[str, str]] = []
        kind = (
            field["type"]
            if found is None
            else _changed_type(field["type"], found["type"], changes, own, types)
        )
        nullable = field["nullable"] or ".".join(own) in changes.relaxed
        metadata = dict(field.get("metadata") or {})
        if types:
            metadata[TYPE_CHANGES] = [*metadata.get(TYPE_CHANGES, ()), *types]
        fields.append({**field, "type": kind, "nullable": nullable, "metadata": metadata})
    added = {*changes.new_columns, *changes.new_fields}
    return fields + [dict(field) for field in given.values() if ".".join((*path, field["name"])) in added]


def _changed_type(
    table: Any,
    given: Any,
    changes: SchemaChanges,
    path: tuple[str, ...],
    types: list[dict[str, str]],
    field_path: tuple[str, ...] = (),
) -> Any:
    """
    Args:
        types: gets the changes of types, as Delta stores them with the nearest field of a struct
        field_path: from that field to this type
    """
    if not isinstance(table, dict):
        if ".".join(path) not in changes.retyped:
            return table
        inside = {"fieldPath": ".".join(field_path)} if field_path else {}
        types.append({"fromType": table, "toType": given, **inside})
        return given
    if not isinstance(given, dict) or table["type"] != given["type"]:
        return table
    if table["type"] == "struct":
        return {**table, "fields": changed_fields(table["fields"], given["fields"], changes, path)}

    def part(name: str, key: str) -> Any:
        below = ((*path, name), types, (*field_path, name))
        return _changed_type(table[key], given[key], changes, *below)

    def contains_null(name: str, key: str) -> bool:
        return bool(table.get(key, True)) or ".".join((*path, name)) in changes.relaxed

    if table["type"] == "array":
        nulls = contains_null("element", "containsNull")
        return {**table, "elementType": part("element", "elementType"), "containsNull": nulls}
    nulls = contains_null("value", "valueContainsNull")
    kinds = {"keyType": part("key", "keyType"), "valueType": part("value", "valueType")}
    return {**table, **kinds, "valueContainsNull": nulls}


# The columns of files -----------------------------------------------------------------------------


def check_files_fit(table: DeltaTableState, content: LakeManifest, batch: str) -> SchemaChanges:
    """Return the changes that the table still needs, to accept the files.

    Raises:
        SchemaMismatchError: the table was altered since the files were planned, and no longer accepts them.
    """
    written = _columns(fields_of(content.schema_json))
    current = _columns(fields_of(table.schema().to_json()))
    planned = {*content.new_columns, *content.altered}
    has_feature = "typeWidening" in (table.protocol().writer_features or ())
    differences = list(compare(written, current, _widens if has_feature else _never, key=by_name))
    problems: list[str] = []
    for found in differences:
        if found.kind is DifferenceKind.NEW:
            problems += _problems_of_new(found, planned)
        elif not (found.kind in _CHANGED and _is_planned(found, planned)):
            problems += problems_in([found], FILES)
    if tuple(table.metadata().partition_columns) != content.partition_by:
        problems.append(f"it is now partitioned by {table.metadata().partition_columns}")
    if problems:
        raise files_mismatch(f"Delta table {table.table_uri}", batch, problems, written, current)
    return _changes(
        differences, lambda found: found.kind is DifferenceKind.NEW or _is_planned(found, planned)
    )


def _is_planned(found: Difference[str, str], planned: Collection[str]) -> bool:
    if found.kind is DifferenceKind.REQUIRED or not set(_names(found)) <= set(planned):
        return False
    is_type = found.kind is DifferenceKind.TYPE
    return not is_type or _widens(found.table[0].type, found.given[0].type)


def _problems_of_new(found: Difference[str, str], planned: Collection[str]) -> Iterator[str]:
    names = {column.name.lower(): column.name for column in found.table}
    for column in found.given:
        name = dotted(found.parent, column)
        if name not in planned:
            yield f"{name!r} is no longer in the table"
        elif column.name.lower() in names:
            yield f"{name!r} is now {names[column.name.lower()]!r} in the table"


def _columns(fields: Fields) -> list[SchemaColumn[str]]:
    return [tree(field["type"], field["name"], not field["nullable"]) for field in fields]


def tree(data_type: Any, name: str = "", is_required: bool = False) -> SchemaColumn[str]:
    """Convert a type in Delta's JSON, including nested types."""
    if not isinstance(data_type, dict):
        return SchemaColumn(name, str(data_type), is_required)
    if data_type["type"] == "struct":
        inside = [tree(field["type"], field["name"], not field["nullable"]) for field in data_type["fields"]]
    elif data_type["type"] == "array":
        inside = [tree(data_type["elementType"], "element", not data_type.get("containsNull", True))]
    else:
        value = tree(data_type["valueType"], "value", not data_type.get("valueContainsNull", True))
        inside = [tree(data_type["keyType"], "key", True), value]
    return SchemaColumn(name, "", is_required, nesting=data_type["type"], children=tuple(inside))


# The columns of readers ---------------------------------------------------------------------------

_READ: Mapping[DifferenceKind, str] = {
    DifferenceKind.REQUIRED: "{columns} is missing, and is NOT NULL in the stream",
    DifferenceKind.TYPE: "{columns} is {given}, and {table} in the stream",
    DifferenceKind.NULLS: "{columns} may be NULL",
    DifferenceKind.NEW: "{names} is new",
}


def problems_of_reading(there: Fields, read: Fields, *, allows_more: bool) -> Sequence[str]:
    """Return why rows with some columns cannot be read as others; none if types are only widened.

    Args:
        there: the columns that the rows have
        read: those that are read
        allows_more: columns that are there and not read do not matter
    """
    differences = compare(_columns(there), _columns(read), _widens, key=by_name)
    ignored = DifferenceKind.NEW if allows_more else None
    return list(problems_in([found for found in differences if found.kind is not ignored], _READ))
