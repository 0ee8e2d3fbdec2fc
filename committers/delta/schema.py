"""Maps a query's columns to a Delta table's, and checks whether files still fit the table.

Pure: takes schemas, returns schemas or raises an error. The table's schema is Delta's own JSON throughout,
because Arrow loses parts of it.
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
from ..file_tables.reserved_names import ReservedNames
from ..file_tables.schema_diff import (
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
"""Default of `delta.dataSkippingNumIndexedCols`: number of leaf columns, counted from the left."""


@dataclass(frozen=True, slots=True)
class DeltaTableLayout:
    """The table layout that a batch is written for. Planned on the driver before any task starts; can be
    pickled.
    """

    table_id: str
    table_version: int
    schema: pa.Schema
    """All columns of the files and of the partition path, in table order, new ones last."""
    schema_json: str
    new_columns: tuple[str, ...]
    """Columns that the commit adds to the table."""
    partition_by: tuple[str, ...]
    statistics_columns: tuple[str, ...] | None
    """`delta.dataSkippingStatsColumns`: dotted names; None if not set."""
    statistics_columns_max: int
    """`delta.dataSkippingNumIndexedCols`: number of leaf columns, counted from the left; -1 for all."""
    created: bool
    """True if planning created the table."""

    def content(self, files: Sequence[DataFile], mode: Mode) -> LakeManifest:
        """Build the manifest content for these files."""
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
    table: DeltaTableState,
    source: Sequence[Mapping[str, Any]],
    *,
    evolve: bool,
    created: bool,
    narrows: bool = False,
) -> DeltaTableLayout:
    """Return the layout for a batch with these columns.

    Args:
        narrows: see `match`

    Raises:
        SchemaMismatchError: shows both schemas.
    """
    fields = fields_of(table.schema().to_json())
    new = match(source, fields, evolve=evolve, table_uri=table.table_uri, narrows=narrows)
    check_reserved(new, table.metadata().configuration, table.table_uri)
    fields += [dict(field) for field in source if field["name"] in new]
    if TIMESTAMP_NTZ_FEATURE not in (table.protocol().writer_features or ()):
        check_timestamps_in_maps(fields, table.table_uri)
    schema_json = json.dumps({"type": "struct", "fields": fields})
    return _target(table, schema_json, tuple(new), created=created)


def target_of_files(table: DeltaTableState, content: LakeManifest) -> DeltaTableLayout:
    """Return the current layout for more files with the same schema.

    Raises:
        SchemaMismatchError: the table was altered since, and no longer accepts these files.
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
    """Split names separated by commas; each may be in backquotes or contain quoted parts."""
    parts = re.findall(r"(?:`[^`]*`|[^,`])+", names)
    return tuple(part.strip().replace("`", "") for part in parts if part.strip())


def delta_fields(source: pa.Schema, table_uri: str) -> list[dict[str, Any]]:
    """Convert the source's columns to Delta fields, all nullable: Spark's flags are hints, not guarantees.

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
            f"The Delta table {table_uri} cannot store these columns of the query:\n" + "\n".join(bad) + "\n"
            "Cast them in the query to a type that Delta supports, or leave them out. Nothing was "
            "written."
        )
    return fields


def _normal_field(column: pa.Field) -> pa.Field:
    return pa.field(column.name, _normal_type(column.type), nullable=column.nullable)


def _normal_type(data_type: pa.DataType) -> pa.DataType:
    """The type in Delta's terms: one string type, one list type, UTC."""
    if pa.types.is_dictionary(data_type):
        return _normal_type(data_type.value_type)
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", "UTC" if data_type.tz else None) if data_type.unit != "ns" else data_type
    if pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type):
        return pa.string()
    if (
        pa.types.is_large_binary(data_type)
        or pa.types.is_binary_view(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    ):
        return pa.binary()
    if (
        pa.types.is_list(data_type)
        or pa.types.is_large_list(data_type)
        or pa.types.is_fixed_size_list(data_type)
    ):
        return pa.list_(
            pa.field("element", _normal_type(data_type.value_type), data_type.value_field.nullable)
        )
    if pa.types.is_struct(data_type):
        return pa.struct([_normal_field(child) for child in data_type])
    if pa.types.is_map(data_type):
        return pa.map_(_normal_type(data_type.key_type), _normal_field(data_type.item_field))
    return data_type


def _nullable(field: dict[str, Any]) -> dict[str, Any]:
    return {**field, "nullable": True, "type": _nullable_type(field["type"])}


def _nullable_type(data_type: Any) -> Any:
    if not isinstance(data_type, dict):
        return data_type
    if data_type["type"] == "struct":
        return {**data_type, "fields": [_nullable(field) for field in data_type["fields"]]}
    if data_type["type"] == "array":
        return {**data_type, "containsNull": True, "elementType": _nullable_type(data_type["elementType"])}
    key, value = _nullable_type(data_type["keyType"]), _nullable_type(data_type["valueType"])
    return {**data_type, "keyType": key, "valueContainsNull": True, "valueType": value}


_OF_CHANGES = ReservedNames(
    "the change data feed, which delta.enableChangeDataFeed enables, has columns of its own with these "
    "names, and delta-spark refuses the table",
    frozenset({"_change_type", "_commit_version", "_commit_timestamp"}),
)
_OF_READERS = ReservedNames(
    "delta-spark uses these names while it reads files, and cannot read a table that has them",
    frozenset({"__delta_internal_is_row_deleted", "__delta_internal_row_index"}),
)


def check_reserved(columns: Sequence[str], properties: Mapping[str, str], table_uri: str) -> None:
    """
    Args:
        columns: those that the table does not have yet
        properties: of the table

    Raises:
        SchemaMismatchError: Delta reserves some of the names.
    """
    table = f"Delta table {table_uri}"
    _OF_READERS.check(columns, table)
    if properties.get("delta.enableChangeDataFeed", "false").lower() == "true":
        _OF_CHANGES.check(columns, table)


TIMESTAMP_NTZ_FEATURE = "timestampNtz"


def check_timestamps_in_maps(fields: Sequence[Mapping[str, Any]], table_uri: str) -> None:
    """Reject columns that would make the whole table unreadable once they are in its schema.

    For `timestamp_ntz`, the Delta library sets the required table feature, but not if the type is inside a
    map.

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
            "inside a map needs a table feature that the Delta library does not set. Cast it to TIMESTAMP "
            "or STRING in the query, e.g. with transform_values(), or add a timestamp_ntz column outside "
            "of maps. Nothing was written."
        )


def _has_timestamp_ntz(column: SchemaColumn[str], *, in_maps: bool) -> bool:
    """With `in_maps`, only inside maps."""
    inside = column.children if in_maps or column.nesting != "map" else ()
    return column.type == "timestamp_ntz" or any(_has_timestamp_ntz(one, in_maps=in_maps) for one in inside)


def match(
    source: Sequence[Mapping[str, Any]],
    table: Sequence[Mapping[str, Any]],
    *,
    evolve: bool,
    table_uri: str,
    narrows: bool = False,
) -> list[str]:
    """Match the source's Delta fields with the table's by name, ignoring case.

    Args:
        narrows: the source's integers and decimals may have other sizes; the writer checks each value

    Returns:
        names of the columns that the table does not have

    Raises:
        SchemaMismatchError: lists the columns that do not fit and shows both schemas.
    """
    given, wanted = _columns(source), _columns(table)
    differences = list(compare(given, wanted, _may_fit if narrows else _is_same_type))
    problems = list(problems_in(differences, _EVOLVING if evolve else _QUERY))
    if problems:
        raise query_mismatch(f"Delta table {table_uri}", problems, given, wanted)
    return [
        column.name for found in differences if found.kind is DifferenceKind.NEW for column in found.given
    ]


_QUERY: Mapping[DifferenceKind, str] = {
    **QUERY,
    DifferenceKind.CASE: "{names} and another column of the query differ only in case",
}
_EVOLVING: Mapping[DifferenceKind, str] = {
    difference: words for difference, words in _QUERY.items() if difference is not DifferenceKind.NEW
}


def _is_same_type(given: SchemaColumn[str], wanted: SchemaColumn[str]) -> bool:
    """Equal, ignoring nested nullability, which the writer checks by value, and the order of struct
    fields.
    """
    return all(found.kind is DifferenceKind.NULLS for found in compare([given], [wanted], operator.eq))


def _may_fit(given: SchemaColumn[str], wanted: SchemaColumn[str]) -> bool:
    """As `_is_same_type`, but integers and decimals may have other sizes."""
    found = compare([given], [wanted], lambda one, other: _family(one) == _family(other))
    return all(difference.kind is DifferenceKind.NULLS for difference in found)


def _family(name: str) -> str:
    """The type without its size."""
    if name in ("byte", "short", "integer", "long"):
        return "integer"
    return "decimal" if name.startswith("decimal(") else name


def _reads_as(written: SchemaColumn[str], current: SchemaColumn[str]) -> bool:
    """Return True if a reader that expects `current` can read files of `written`. Nullable struct fields may
    be missing.
    """
    found = compare([written], [current], operator.eq, key=by_name)
    return all(difference.kind is DifferenceKind.MISSING for difference in found)


def check_files_fit(table: DeltaTableState, content: LakeManifest, batch: str) -> list[str]:
    """Return the columns of the files that the table does not have yet.

    Raises:
        SchemaMismatchError: the table was altered since the files were planned, and no longer accepts them.
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
                problems.append(f"{column.name!r} is now {names[column.name.lower()]!r} in the table")
            else:
                missing_columns.append(column.name)
    if tuple(table.metadata().partition_columns) != content.partition_by:
        problems.append(f"it is now partitioned by {table.metadata().partition_columns}")
    if problems:
        raise files_mismatch(f"Delta table {table.table_uri}", batch, problems, written, current)
    return missing_columns


def _columns(fields: Sequence[Mapping[str, Any]]) -> list[SchemaColumn[SchemaColumn[str]]]:
    """Delta does not add fields to structs or change their types, so a column is compared as a whole."""
    return [SchemaColumn(field["name"], _tree(field["type"]), not field["nullable"]) for field in fields]


def _tree(data_type: Any, name: str = "", is_required: bool = False) -> SchemaColumn[str]:
    """Convert a type in Delta's JSON, including nested types."""
    if not isinstance(data_type, dict):
        return SchemaColumn(name, str(data_type), is_required)
    if data_type["type"] == "struct":
        inside = [_tree(field["type"], field["name"], not field["nullable"]) for field in data_type["fields"]]
    elif data_type["type"] == "array":
        inside = [_tree(data_type["elementType"], "element", not data_type.get("containsNull", True))]
    else:
        value = _tree(data_type["valueType"], "value", not data_type.get("valueContainsNull", True))
        inside = [_tree(data_type["keyType"], "key", True), value]
    return SchemaColumn(name, "", is_required, nesting=data_type["type"], children=tuple(inside))
