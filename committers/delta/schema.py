"""The layout of a Delta table for a query: its columns, with those of the query.

Pure: takes schemas, returns schemas or raises an error. The table's schema is Delta's own JSON throughout,
because Arrow loses parts of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import Schema

from ..arrow_values import VARIANT, is_variant
from ..contract import DataFile, Mode
from ..errors import SchemaMismatchError
from ..file_tables.evolution import NO_EVOLUTION, Evolution, Narrowing
from ..file_tables.manifest import LakeManifest
from ..file_tables.reserved_names import ReservedNames
from ..file_tables.schema_diff import SchemaColumn
from .schema_match import changed_fields, check_files_fit, fields_of, is_widening, match, tree
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
    altered: tuple[str, ...]
    """Columns that the commit changes otherwise; see `LakeManifest`."""
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
            altered=self.altered,
            partition_by=self.partition_by,
            files=tuple(files),
        )


def plan_target(
    table: DeltaTableState,
    source: Sequence[Mapping[str, Any]],
    *,
    created: bool,
    evolution: Evolution = NO_EVOLUTION,
    widens_types: bool = False,
    narrows: Narrowing = Narrowing.NONE,
) -> DeltaTableLayout:
    """Return the layout for a batch with these columns.

    Args:
        evolution, narrows: see `match`
        widens_types: the table may get Delta's type widening, if it does not have it

    Raises:
        SchemaMismatchError: shows both schemas.
    """
    fields = fields_of(table.schema().to_json())
    widens = widens_types or is_widening(table)
    changes = match(
        source, fields, evolution=evolution, widens=widens, table_uri=table.table_uri, narrows=narrows
    )
    check_reserved(changes.new_columns, table.metadata().configuration, table.table_uri)
    fields = changed_fields(fields, source, changes)
    if TIMESTAMP_NTZ_FEATURE not in (table.protocol().writer_features or ()):
        check_timestamps_in_maps(fields, table.table_uri)
    schema_json = json.dumps({"type": "struct", "fields": fields})
    return _target(table, schema_json, changes.new_columns, changes.altered, created=created)


def target_of_files(table: DeltaTableState, content: LakeManifest) -> DeltaTableLayout:
    """Return the current layout for more files with the same schema.

    Raises:
        SchemaMismatchError: the table was altered since, and no longer accepts these files.
    """
    check_files_fit(table, content, "the batch")
    return _target(table, content.schema_json, content.new_columns, content.altered, created=False)


def _target(
    table: DeltaTableState,
    schema_json: str,
    new_columns: tuple[str, ...],
    altered: tuple[str, ...],
    *,
    created: bool,
) -> DeltaTableLayout:
    properties = table.metadata().configuration
    statistics_columns = properties.get("delta.dataSkippingStatsColumns")
    return DeltaTableLayout(
        table_id=str(table.metadata().id),
        table_version=table.version(),
        schema=arrow_columns(schema_json),
        schema_json=schema_json,
        new_columns=new_columns,
        altered=altered,
        partition_by=tuple(table.metadata().partition_columns),
        statistics_columns=None if statistics_columns is None else _split_names(statistics_columns),
        statistics_columns_max=int(
            properties.get("delta.dataSkippingNumIndexedCols", STATISTICS_COLUMNS_DEFAULT)
        ),
        created=created,
    )


def arrow_columns(schema_json: str) -> pa.Schema:
    """Convert the columns of a schema in Delta's JSON; those of VARIANT are marked as Spark marks them."""
    columns = pa.schema(Schema.from_json(schema_json).to_arrow())
    variants = {field["name"] for field in fields_of(schema_json) if field["type"] == "variant"}
    return pa.schema([c.with_type(VARIANT) if c.name in variants else c for c in columns])


VARIANT_FEATURE = "variantType"


def check_variants(
    fields: Sequence[Mapping[str, Any]], table: DeltaTableState | None, table_uri: str
) -> None:
    """
    Args:
        table: None: it is to be created

    Raises:
        SchemaMismatchError: the table cannot have the VARIANT columns of the query.
    """
    names = [str(field["name"]) for field in fields if field["type"] == "variant"]
    features = () if table is None else table.protocol().writer_features or ()
    if names and VARIANT_FEATURE not in features:
        why = "it does not exist" if table is None else "it does not have the table feature variantType"
        raise SchemaMismatchError(
            f"The Delta table {table_uri} cannot have the VARIANT column(s) {', '.join(map(repr, names))}: "
            f"{why}, and the Delta library cannot set the feature. Nothing was written. Create the table "
            "with Delta for Spark: CREATE TABLE ... (... VARIANT) USING delta; or write to_json(column) to a "
            "string column."
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
        if is_variant(column.type):
            fields.append({"name": column.name, "type": "variant", "nullable": True, "metadata": {}})
            continue
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
    columns = [tree(field["type"], field["name"]) for field in fields]
    if has_timestamp_ntz(fields, in_maps=False):
        return
    bad = [column.name for column in columns if _has_timestamp_ntz(column, in_maps=True)]
    if bad:
        raise SchemaMismatchError(
            f"The Delta table {table_uri} cannot get the columns {', '.join(map(repr, bad))}: timestamp_ntz "
            "inside a map needs a table feature that the Delta library does not set. Cast it to TIMESTAMP "
            "or STRING in the query, e.g. with transform_values(), or add a timestamp_ntz column outside "
            "of maps. Nothing was written."
        )


def has_timestamp_ntz(fields: Sequence[Mapping[str, Any]], *, in_maps: bool = True) -> bool:
    """Return True if a column has the type, also inside of maps if `in_maps`."""
    columns = [tree(field["type"], field["name"]) for field in fields]
    kinds = (False, True) if in_maps else (False,)
    return any(_has_timestamp_ntz(column, in_maps=kind) for column in columns for kind in kinds)


def _has_timestamp_ntz(column: SchemaColumn[str], *, in_maps: bool) -> bool:
    """With `in_maps`, only inside maps."""
    inside = column.children if in_maps or column.nesting != "map" else ()
    return column.type == "timestamp_ntz" or any(_has_timestamp_ntz(one, in_maps=in_maps) for one in inside)
