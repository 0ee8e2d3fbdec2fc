"""How a query's columns map onto a Delta table's, and whether files still fit the table.

Pure: schemas in, schemas or an error out. The table's schema is Delta's own JSON throughout, because Arrow
loses parts of it.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import Schema

from ..contract import DataFile, Mode
from ..errors import SchemaMismatchError
from ..file_tables.manifest import LakeManifest
from ..schema_diff import (
    FILES,
    QUERY,
    DifferenceKind,
    SchemaColumn,
    by_name,
    compare,
    files_mismatch,
    problems_in,
    query_mismatch,
)
from .table import KIND
from .table_state import DeltaTableState

STATISTICS_COLUMNS_DEFAULT = 32
"""`delta.dataSkippingNumIndexedCols` of a table that does not say: leaf columns from the left."""


@dataclass(frozen=True, slots=True)
class DeltaTableLayout:
    """What a batch is written into. Planned on the driver before any data moves; pickles."""

    table_id: str
    table_version: int
    schema: pa.Schema
    """All columns of the files and of the partition path, in table order, new ones last."""
    schema_json: str
    new_columns: tuple[str, ...]
    """Columns that the commit adds to the table."""
    partition_by: tuple[str, ...]
    statistics_columns: tuple[str, ...] | None
    """`delta.dataSkippingStatsColumns`: dotted names; None if the table does not say."""
    statistics_columns_max: int
    """`delta.dataSkippingNumIndexedCols`: leaf columns from the left, -1 for all."""
    created: bool
    """True if planning created the table."""

    def content(self, files: Sequence[DataFile], mode: Mode) -> LakeManifest:
        """The manifest content of these files."""
        return LakeManifest(
            kind=KIND,
            mode=mode,
            table_id=self.table_id,
            table_version=self.table_version,
            schema_json=self.schema_json,
            new_columns=self.new_columns,
            partition_by=self.partition_by,
            files=tuple(files),
        )


def fields_of(schema_json: str) -> list[dict[str, Any]]:
    """The top-level fields of a schema in Delta's JSON."""
    fields: list[dict[str, Any]] = json.loads(schema_json)["fields"]
    return fields


def plan_target(
    table: DeltaTableState, source: Sequence[Mapping[str, Any]], *, evolve: bool, created: bool
) -> DeltaTableLayout:
    """What a batch with these columns is written into.

    Raises:
        SchemaMismatchError: shows both schemas.
    """
    fields = fields_of(table.schema().to_json())
    new = match(source, fields, evolve=evolve, table_uri=table.table_uri)
    fields += [dict(field) for field in source if field["name"] in new]
    if TIMESTAMP_NTZ_FEATURE not in (table.protocol().writer_features or ()):
        check_timestamps_in_maps(fields, table.table_uri)
    schema_json = json.dumps({"type": "struct", "fields": fields})
    return _target(table, schema_json, tuple(new), created=created)


def target_of_files(table: DeltaTableState, content: LakeManifest) -> DeltaTableLayout:
    """What further files with the schema of these are written into: as the table wants files now.

    Raises:
        SchemaMismatchError: the table was altered since, and cannot take them.
    """
    check_files_fit(table, content, "the batch")
    return _target(table, content.schema_json, content.new_columns, created=False)


def _target(
    table: DeltaTableState, schema_json: str, new_columns: tuple[str, ...], *, created: bool
) -> DeltaTableLayout:
    properties = table.metadata().configuration
    statistics_columns = properties.get("delta.dataSkippingStatsColumns")
    return DeltaTableLayout(
        table_id=str(table.metadata().id),
        table_version=table.version(),
        schema=pa.schema(Schema.from_json(schema_json).to_arrow()),
        schema_json=schema_json,
        new_columns=new_columns,
        partition_by=tuple(table.metadata().partition_columns),
        statistics_columns=None if statistics_columns is None else _split_names(statistics_columns),
        statistics_columns_max=int(
            properties.get("delta.dataSkippingNumIndexedCols", STATISTICS_COLUMNS_DEFAULT)
        ),
        created=created,
    )


def _split_names(names: str) -> tuple[str, ...]:
    """Names separated by commas, each in backquotes or with parts in them."""
    parts = re.findall(r"(?:`[^`]*`|[^,`])+", names)
    return tuple(part.strip().replace("`", "") for part in parts if part.strip())


def delta_fields(source: pa.Schema, table_uri: str) -> list[dict[str, Any]]:
    """The source's columns as Delta writes them, all nullable: Spark's flags are hints, not promises.

    Raises:
        SchemaMismatchError: names the columns that Delta has no type for.
    """
    fields, bad = [], []
    for column in source:
        try:
            schema = Schema.from_arrow(pa.schema([_normal_field(column)]))
        except Exception as error:  # noqa: BLE001  the library raises bare Exception for an unknown type
            bad.append(f"  - {column.name}: {column.type} ({str(error).splitlines()[0]})")
            continue
        fields.append(_nullable(json.loads(schema.to_json())["fields"][0]))
    if bad:
        raise SchemaMismatchError(
            f"The Delta table {table_uri} cannot hold these columns of the query:\n"
            + "\n".join(bad)
            + "\nCast "
            "them in the query to a type that Delta has, or leave them out. Nothing was written."
        )
    return fields


def _normal_field(column: pa.Field) -> pa.Field:
    return pa.field(column.name, _normal_type(column.type), nullable=column.nullable)


def _normal_type(kind: pa.DataType) -> pa.DataType:
    """The type as Delta names it: one string, one list, UTC."""
    if pa.types.is_dictionary(kind):
        return _normal_type(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None) if kind.unit != "ns" else kind
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _normal_type(kind.value_type), kind.value_field.nullable))
    if pa.types.is_struct(kind):
        return pa.struct([_normal_field(child) for child in kind])
    if pa.types.is_map(kind):
        return pa.map_(_normal_type(kind.key_type), _normal_field(kind.item_field))
    return kind


def _nullable(field: dict[str, Any]) -> dict[str, Any]:
    return {**field, "nullable": True, "type": _nullable_type(field["type"])}


def _nullable_type(kind: Any) -> Any:
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        return {**kind, "fields": [_nullable(field) for field in kind["fields"]]}
    if kind["type"] == "array":
        return {**kind, "containsNull": True, "elementType": _nullable_type(kind["elementType"])}
    key, value = _nullable_type(kind["keyType"]), _nullable_type(kind["valueType"])
    return {**kind, "keyType": key, "valueContainsNull": True, "valueType": value}


TIMESTAMP_NTZ_FEATURE = "timestampNtz"


def check_timestamps_in_maps(fields: Sequence[Mapping[str, Any]], table_uri: str) -> None:
    """Refuse columns that nobody could read any more, nor the whole table, once they are in its schema.

    The Delta library gives a table the feature that `timestamp_ntz` needs, but overlooks that type in maps.

    Raises:
        SchemaMismatchError: names the columns.
    """
    columns = [_tree(field["type"], field["name"]) for field in fields]
    if any(_has_timestamp_ntz(column, in_maps=False) for column in columns):
        return
    bad = [column.name for column in columns if _has_timestamp_ntz(column, in_maps=True)]
    if bad:
        raise SchemaMismatchError(
            f"The Delta table {table_uri} cannot get the columns {', '.join(map(repr, bad))}: timestamp_ntz "
            "inside a map needs a table feature that the Delta library does not set for it. Cast it to "
            "TIMESTAMP or STRING in the query, e.g. with transform_values(), or add a timestamp_ntz column "
            "outside of maps. Nothing was written."
        )


def _has_timestamp_ntz(column: SchemaColumn[str], *, in_maps: bool) -> bool:
    """With `in_maps`, also inside maps."""
    inside = column.children if in_maps or column.nesting != "map" else ()
    return column.type == "timestamp_ntz" or any(_has_timestamp_ntz(one, in_maps=in_maps) for one in inside)


def match(
    source: Sequence[Mapping[str, Any]], table: Sequence[Mapping[str, Any]], *, evolve: bool, table_uri: str
) -> list[str]:
    """Lay the source's Delta fields over the table's, by name, case ignored.

    Returns:
        names of the columns that the table does not have

    Raises:
        SchemaMismatchError: says which columns do not fit and shows both schemas.
    """
    given, wanted = _columns(source), _columns(table)
    differences = list(compare(given, wanted, _is_same_type))
    problems = list(problems_in(differences, _EVOLVING if evolve else _QUERY))
    if problems:
        raise query_mismatch(f"Delta table {table_uri}", problems, given, wanted)
    return [
        column.name for found in differences if found.kind is DifferenceKind.NEW for column in found.given
    ]


_QUERY: Mapping[DifferenceKind, str] = {
    **QUERY,
    DifferenceKind.CASE: "{names} and another column of the query differ by case only",
}
_EVOLVING: Mapping[DifferenceKind, str] = {
    kind: words for kind, words in _QUERY.items() if kind is not DifferenceKind.NEW
}


def _is_same_type(given: SchemaColumn[str], wanted: SchemaColumn[str]) -> bool:
    """Equal but for nullability inside, which the writer checks by value, and the order of struct fields."""
    return all(found.kind is DifferenceKind.NULLS for found in compare([given], [wanted], operator.eq))


def _reads_as(written: SchemaColumn[str], current: SchemaColumn[str]) -> bool:
    """Can a reader that expects `current` read files of `written`? Nullable struct fields may be missing."""
    found = compare([written], [current], operator.eq, key=by_name)
    return all(difference.kind is DifferenceKind.MISSING for difference in found)


def check_files_fit(table: DeltaTableState, content: LakeManifest, batch: str) -> list[str]:
    """Columns of the files that the table has yet to get.

    Raises:
        SchemaMismatchError: the table was altered since the files were planned, and cannot take them.
    """
    written = _columns(fields_of(content.schema_json))
    current = _columns(fields_of(table.schema().to_json()))
    names = {column.name.lower(): column.name for column in current}
    problems: list[str] = []
    missing_columns: list[str] = []
    for found in compare(written, current, _reads_as, key=by_name):
        if found.kind is not DifferenceKind.NEW:
            problems += problems_in([found], FILES)
            continue
        for column in found.given:
            if column.name not in content.new_columns:
                problems.append(f"{column.name!r} is no longer in the table")
            elif column.name.lower() in names:
                problems.append(f"{column.name!r} is in the table as {names[column.name.lower()]!r} now")
            else:
                missing_columns.append(column.name)
    if tuple(table.metadata().partition_columns) != content.partition_by:
        problems.append(f"it is now partitioned by {table.metadata().partition_columns}")
    if problems:
        raise files_mismatch(f"Delta table {table.table_uri}", batch, problems, written, current)
    return missing_columns


def _columns(fields: Sequence[Mapping[str, Any]]) -> list[SchemaColumn[SchemaColumn[str]]]:
    """Delta adds no fields to structs, and never changes their types: a column is compared as a whole."""
    return [SchemaColumn(field["name"], _tree(field["type"]), not field["nullable"]) for field in fields]


def _tree(kind: Any, name: str = "", is_required: bool = False) -> SchemaColumn[str]:
    """A type in Delta's JSON, with what is inside."""
    if not isinstance(kind, dict):
        return SchemaColumn(name, str(kind), is_required)
    if kind["type"] == "struct":
        inside = [_tree(field["type"], field["name"], not field["nullable"]) for field in kind["fields"]]
    elif kind["type"] == "array":
        inside = [_tree(kind["elementType"], "element", not kind.get("containsNull", True))]
    else:
        value = _tree(kind["valueType"], "value", not kind.get("valueContainsNull", True))
        inside = [_tree(kind["keyType"], "key", True), value]
    return SchemaColumn(name, "", is_required, nesting=kind["type"], children=tuple(inside))
