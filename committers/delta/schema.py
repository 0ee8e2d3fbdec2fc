"""How a query's columns map onto a Delta table's, and whether files still fit the table.

Pure: schemas in, schemas or an error out. The table's schema is Delta's own JSON throughout, because Arrow
loses parts of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import Schema

from ..contract import DataFile, Mode
from ..errors import SchemaMismatchError
from ..file_tables.manifest import LakeManifest
from .table import KIND
from .table_state import TableState

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
    source_columns: tuple[str | None, ...]
    """For each column of `schema` the query's column that goes there; None is filled with NULL."""
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


@dataclass(frozen=True, slots=True)
class Match:
    """A query's columns laid over a table's."""

    fields: tuple[Mapping[str, Any], ...]
    new_columns: tuple[str, ...]
    source_columns: tuple[str | None, ...]


def fields_of(schema_json: str) -> list[dict[str, Any]]:
    """The top-level fields of a schema in Delta's JSON."""
    fields: list[dict[str, Any]] = json.loads(schema_json)["fields"]
    return fields


def plan_target(
    table: TableState, source: Sequence[Mapping[str, Any]], *, evolve: bool, created: bool
) -> DeltaTableLayout:
    """What a batch with these columns is written into.

    Raises:
        SchemaMismatchError: shows both schemas.
    """
    matched = match(source, fields_of(table.schema().to_json()), evolve=evolve, table_uri=table.table_uri)
    if TIMESTAMP_NTZ_FEATURE not in (table.protocol().writer_features or ()):
        check_timestamps_in_maps(matched.fields, table.table_uri)
    schema_json = json.dumps({"type": "struct", "fields": list(matched.fields)})
    return _target(
        table,
        schema_json,
        new_columns=matched.new_columns,
        source_columns=matched.source_columns,
        created=created,
    )


def target_of_files(table: TableState, content: LakeManifest) -> DeltaTableLayout:
    """What further files with the schema of these are written into: as the table wants files now.

    Raises:
        SchemaMismatchError: the table was altered since, and cannot take them.
    """
    check_files_fit(table, content, "the batch")
    return _target(
        table, content.schema_json, new_columns=content.new_columns, source_columns=(), created=False
    )


def _target(
    table: TableState,
    schema_json: str,
    *,
    new_columns: tuple[str, ...],
    source_columns: tuple[str | None, ...],
    created: bool,
) -> DeltaTableLayout:
    properties = table.metadata().configuration
    statistics_columns = properties.get("delta.dataSkippingStatsColumns")
    return DeltaTableLayout(
        table_id=str(table.metadata().id),
        table_version=table.version(),
        schema=pa.schema(Schema.from_json(schema_json).to_arrow()),
        schema_json=schema_json,
        new_columns=new_columns,
        source_columns=source_columns,
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
    if any(_has_timestamp_ntz(field["type"], in_maps=False) for field in fields):
        return
    bad = [field["name"] for field in fields if _has_timestamp_ntz(field["type"], in_maps=True)]
    if bad:
        raise SchemaMismatchError(
            f"The Delta table {table_uri} cannot get the columns {', '.join(map(repr, bad))}: timestamp_ntz "
            "inside a map needs a table feature that the Delta library does not set for it. Cast it to "
            "TIMESTAMP or STRING in the query, e.g. with transform_values(), or add a timestamp_ntz column "
            "outside of maps. Nothing was written."
        )


def _has_timestamp_ntz(kind: Any, *, in_maps: bool) -> bool:
    """With `in_maps`, also inside maps."""
    if not isinstance(kind, dict):
        return bool(kind == "timestamp_ntz")
    if kind["type"] == "map" and not in_maps:
        return False
    inside = [kind[part] for part in ("elementType", "keyType", "valueType") if part in kind]
    inside += [field["type"] for field in kind.get("fields", ())]
    return any(_has_timestamp_ntz(inner, in_maps=in_maps) for inner in inside)


def match(
    source: Sequence[Mapping[str, Any]], table: Sequence[Mapping[str, Any]], *, evolve: bool, table_uri: str
) -> Match:
    """Lay the source's Delta fields over the table's, by name, case ignored.

    Raises:
        SchemaMismatchError: says which columns do not fit and shows both schemas.
    """
    by_name: dict[str, Mapping[str, Any]] = {}
    problems = []
    for field in source:
        if field["name"].lower() in by_name:
            problems.append(
                f"{field['name']!r} and {by_name[field['name'].lower()]['name']!r} differ by case only"
            )
        by_name[field["name"].lower()] = field
    matched = []
    for field in table:
        given = by_name.pop(field["name"].lower(), None)
        matched.append(None if given is None else given["name"])
        if given is None and not field["nullable"]:
            problems.append(f"{field['name']!r} is NOT NULL in the table and missing in the query")
        elif given is not None and not same_type(given["type"], field["type"]):
            problems.append(
                f"{field['name']!r} is {type_name(field['type'])} in the table and "
                f"{type_name(given['type'])} in the query"
            )
    extra = list(by_name.values())
    if extra and not evolve:
        names = ", ".join(repr(field["name"]) for field in extra)
        problems.append(f"the table has no column {names} (schemaEvolution=addColumns would add it)")
    if problems:
        raise SchemaMismatchError(_both_schemas(table_uri, problems, source, table))
    new = tuple(field["name"] for field in extra)
    return Match((*table, *extra), new, (*matched, *new))


def same_type(given: Any, wanted: Any) -> bool:
    """Equal but for nullability inside, which the writer checks by value, and the order of struct fields."""
    if not (isinstance(given, dict) and isinstance(wanted, dict)):
        return bool(given == wanted)
    if given["type"] != wanted["type"]:
        return False
    if wanted["type"] == "array":
        return same_type(given["elementType"], wanted["elementType"])
    if wanted["type"] == "map":
        return same_type(given["keyType"], wanted["keyType"]) and same_type(
            given["valueType"], wanted["valueType"]
        )
    given_fields = {field["name"]: field["type"] for field in given["fields"]}
    wanted_fields = {field["name"]: field["type"] for field in wanted["fields"]}
    return given_fields.keys() == wanted_fields.keys() and all(
        same_type(given_fields[name], kind) for name, kind in wanted_fields.items()
    )


def check_files_fit(table: TableState, content: LakeManifest, batch: str) -> list[str]:
    """Columns of the files that the table has yet to get.

    Raises:
        SchemaMismatchError: the table was altered since the files were planned, and cannot take them.
    """
    written, current = fields_of(content.schema_json), fields_of(table.schema().to_json())
    problems, lacking = missing_columns(written, current, content.new_columns)
    if tuple(table.metadata().partition_columns) != content.partition_by:
        problems.append(f"it is now partitioned by {table.metadata().partition_columns}")
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise SchemaMismatchError(
            f"The Delta table {table.table_uri} was altered while {batch} was written, and can no longer "
            f"take its files:\n{lines}\n  The files have:\n{describe(written)}\n  The table has:\n"
            f"{describe(current)}\nThe batch did not land. Alter the table back; or start a coupled query "
            "again, which writes it for the new columns."
        )
    return lacking


def missing_columns(
    written: Sequence[Mapping[str, Any]], table: Sequence[Mapping[str, Any]], new_columns: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Do files of the schema `written` still fit the table?

    Returns:
        (problems, columns that the table has yet to get)
    """
    problems: list[str] = []
    lacking: list[str] = []
    now = {field["name"]: field for field in table}
    spelt = {name.lower(): name for name in now}
    for field in written:
        current = now.pop(field["name"], None)
        if current is not None:
            problems += _misfits(field["name"], field, current)
        elif field["name"] not in new_columns:
            problems.append(f"{field['name']!r} is no longer in the table")
        elif field["name"].lower() in spelt:
            problems.append(f"{field['name']!r} is in the table as {spelt[field['name'].lower()]!r} now")
        else:
            lacking.append(field["name"])
    problems += [
        f"{name!r} is NOT NULL in the table and not in the files"
        for name, f in now.items()
        if not f["nullable"]
    ]
    return problems, lacking


def _misfits(name: str, written: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    if not reads_as(written["type"], current["type"]):
        return [f"{name!r} is now {type_name(current['type'])}; the files have {type_name(written['type'])}"]
    if written["nullable"] and not current["nullable"]:
        return [f"{name!r} is now NOT NULL; the files may have NULLs"]
    return []


def reads_as(written: Any, current: Any) -> bool:
    """Can a reader that expects `current` read files of `written`? Nullable struct fields may be missing."""
    if not (isinstance(written, dict) and isinstance(current, dict)):
        return bool(written == current)
    if written["type"] != current["type"]:
        return False
    if current["type"] == "array":
        return _nulls_fit(written, current, "containsNull") and reads_as(
            written["elementType"], current["elementType"]
        )
    if current["type"] == "map":
        return (
            _nulls_fit(written, current, "valueContainsNull")
            and reads_as(written["keyType"], current["keyType"])
            and reads_as(written["valueType"], current["valueType"])
        )
    problems, lacking = missing_columns(written["fields"], current["fields"], ())
    return not problems and not lacking


def _nulls_fit(written: Mapping[str, Any], current: Mapping[str, Any], flag: str) -> bool:
    return bool(current.get(flag, True)) or not written.get(flag, True)


def type_name(kind: Any) -> str:
    if not isinstance(kind, dict):
        return str(kind)
    if kind["type"] == "array":
        return f"array<{type_name(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{type_name(kind['keyType'])}, {type_name(kind['valueType'])}>"
    return (
        "struct<"
        + ", ".join(f"{field['name']}: {type_name(field['type'])}" for field in kind["fields"])
        + ">"
    )


def describe(fields: Sequence[Mapping[str, Any]]) -> str:
    """One line a column, for messages."""
    return "\n".join(
        f"    {field['name']}: {type_name(field['type'])}{'' if field['nullable'] else ' NOT NULL'}"
        for field in fields
    )


def _both_schemas(
    table_uri: str,
    problems: list[str],
    source: Sequence[Mapping[str, Any]],
    table: Sequence[Mapping[str, Any]],
) -> str:
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return (
        f"The query's rows do not fit the Delta table {table_uri}:\n{lines}\n"
        f"  The query has:\n{describe(source)}\n  The table has:\n{describe(table)}\n"
        f"Select, rename or cast the columns in the query, or alter the table. Nothing was written."
    )
