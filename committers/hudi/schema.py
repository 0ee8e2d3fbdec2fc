"""Schemas of Hudi tables: Avro records, as Hudi's own Spark writer spells them. Pure."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..errors import SchemaMismatchError, TableNotSupportedError
from ..file_tables.evolution import Narrowing
from ..file_tables.schema_diff import (
    FILES,
    NOT_ADDED,
    QUERY,
    DifferenceKind,
    SchemaColumn,
    compare,
    files_mismatch,
    problems_in,
    query_mismatch,
)
from .names import META_COLUMNS, RESERVED

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIMPLE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_DECIMAL_BYTES = [max(1, -(-len(bin(10**digits - 1)[2:] + "0") // 8)) for digits in range(39)]
"""The fewest bytes that hold a decimal of so many digits."""

Record = Mapping[str, Any]


# Arrow to Avro ------------------------------------------------------------------------------------


def avro_record(schema: pa.Schema, table: str, meta: bool = False) -> dict[str, Any]:
    """Return the Avro record of these columns, all nullable.

    Args:
        table: name of the table
        meta: put Hudi's own columns first

    Raises:
        SchemaMismatchError: names the columns that Hudi cannot store.
    """
    name = re.sub(r"\W", "_", table, flags=re.ASCII)
    problems: list[str] = []
    fields = [_field(column, f"hoodie.{name}.{name}_record", column.name, problems) for column in schema]
    problems += [
        f"{column}: Hudi has a column of its own with this name"
        for column in schema.names
        if column.lower() in META_COLUMNS
    ]
    if problems:
        raise SchemaMismatchError(
            "A Hudi table cannot store these columns of the query:\n  - " + "\n  - ".join(problems) + "\n"
            "Rename or cast them in the query, or leave them out. Nothing was written."
        )
    own = [{"name": one, "type": ["null", "string"], "doc": "", "default": None} for one in META_COLUMNS]
    all_fields = [*(own if meta else ()), *fields]
    return {"type": "record", "name": f"{name}_record", "namespace": f"hoodie.{name}", "fields": all_fields}


def _field(column: pa.Field, space: str, path: str, problems: list[str]) -> dict[str, Any]:
    if not _NAME.fullmatch(column.name):
        problems.append(f"{path}: names in Avro have letters, digits and underscores only")
    return {"name": column.name, "type": ["null", _avro(column, space, path, problems)], "default": None}


def _avro(column: pa.Field, space: str, path: str, problems: list[str]) -> Any:
    kind, types, inner = column.type, pa.types, f"{space}.{column.name}"
    if types.is_int8(kind) or types.is_int16(kind):
        return "int"
    for name, arrow in _SIMPLE.items():
        if kind == arrow:
            return name
    for name, arrow in _LOGICAL.items():
        if kind == arrow:
            return {"type": "int" if name == "date" else "long", "logicalType": name}
    if types.is_decimal128(kind):
        fixed = {"type": "fixed", "name": "fixed", "namespace": inner, "size": _DECIMAL_BYTES[kind.precision]}
        return {**fixed, "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if types.is_struct(kind):
        fields = [_field(child, inner, f"{path}.{child.name}", problems) for child in kind]
        return {"type": "record", "name": column.name, "namespace": space, "fields": fields}
    if types.is_list(kind):
        element = kind.value_field.with_name(column.name)
        return {"type": "array", "items": ["null", _avro(element, inner, f"{path}.element", problems)]}
    if types.is_map(kind):
        if not types.is_string(kind.key_type):
            problems.append(f"{path}: keys of maps must be strings in Avro, not {kind.key_type}")
        value = kind.item_field.with_name(column.name)
        return {"type": "map", "values": ["null", _avro(value, inner, f"{path}.value", problems)]}
    problems.append(f"{path}: Hudi has no type for {kind}")
    return "null"


# Avro to Arrow ------------------------------------------------------------------------------------


def arrow_schema(record: Record) -> pa.Schema:
    """Return the columns of a record without Hudi's own.

    Raises:
        TableNotSupportedError: a column has a type that Penstock does not write.
    """
    fields = [field for field in record["fields"] if field["name"] not in META_COLUMNS]
    return pa.schema([_arrow_field(field["name"], field["type"]) for field in fields])


def parse_record(text: str, table_uri: str) -> dict[str, Any]:
    """Parse the schema of a table, without Hudi's own columns.

    Raises:
        TableNotSupportedError: it is no record, or has a type that Penstock does not write.
    """
    try:
        record: dict[str, Any] = json.loads(text)
        record = {**record, "fields": [one for one in record["fields"] if one["name"] not in META_COLUMNS]}
        arrow_schema(record)
    except (ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
        raise TableNotSupportedError(
            f"Penstock cannot write the schema of the Hudi table {table_uri}: {error!r}. Nothing was "
            "written. Write the table with Hudi's own writer, or write another table."
        ) from error
    return record


def _arrow_field(name: str, avro: Any) -> pa.Field:
    branches = avro if isinstance(avro, list) else [avro]
    others = [one for one in branches if one != "null"]
    if len(others) != 1:
        raise ValueError(f"column {name} is a union of several types")
    return pa.field(name, _arrow_type(name, others[0]), nullable="null" in branches)


def _arrow_type(name: str, avro: Any) -> pa.DataType:
    if isinstance(avro, str):
        return _SIMPLE[avro]
    logical = avro.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    if logical is not None:
        return _LOGICAL[logical]
    if avro["type"] == "record":
        return pa.struct([_arrow_field(field["name"], field["type"]) for field in avro["fields"]])
    if avro["type"] == "array":
        return pa.list_(_arrow_field("element", avro["items"]))
    if avro["type"] == "map":
        return pa.map_(pa.string(), _arrow_field("value", avro["values"]))
    return _SIMPLE[avro["type"]]


# Comparison ---------------------------------------------------------------------------------------


def new_columns(
    given: Record, table: Record, table_uri: str, *, evolve: bool, narrows: Narrowing
) -> list[str]:
    """Return the columns of the query that the table does not have.

    Args:
        narrows: which columns of the query may have other types; the writer checks each value

    Raises:
        SchemaMismatchError: lists the columns that do not fit and shows both schemas.
    """
    rows, wanted = _columns(given), _columns(table)
    differences = list(compare(rows, wanted, _may_fit if narrows else operator.eq))
    wording = dict(QUERY)
    if evolve:
        del wording[DifferenceKind.NEW]
    if narrows is Narrowing.ANY:
        by_value = (DifferenceKind.NEW, DifferenceKind.TYPE)
        differences = [one for one in differences if one.kind not in by_value]
    problems = [
        problem
        for one in differences
        for problem in problems_in([one], {**wording, **NOT_ADDED} if one.parent else wording)
    ]
    if problems:
        raise query_mismatch(f"Hudi table {table_uri}", problems, rows, wanted)
    new = [column.name for one in differences if one.kind is DifferenceKind.NEW for column in one.given]
    RESERVED.check(new, f"Hudi table {table_uri}")
    return new


def merged(files: Record, new: Sequence[str], table: Record, table_uri: str, batch: str) -> dict[str, Any]:
    """Return the schema of the table after files with new columns are added.

    Raises:
        SchemaMismatchError: the table was altered, and no longer accepts these files.
    """
    written, current = _columns(files), _columns(table)
    differences = list(compare(written, current, operator.eq))
    problems = list(problems_in(differences, FILES))
    added = [column.name for one in differences if one.kind is DifferenceKind.NEW for column in one.given]
    problems += [f"{name!r} is no longer in the table" for name in added if name not in new]
    if problems:
        raise files_mismatch(f"Hudi table {table_uri}", batch, problems, written, current)
    return {**table, "fields": [*table["fields"], *(one for one in files["fields"] if one["name"] in added)]}


def _columns(record: Record) -> list[SchemaColumn[str]]:
    return list(_tree(arrow_schema(record)))


def _tree(fields: Sequence[pa.Field] | pa.Schema | pa.StructType) -> Iterator[SchemaColumn[str]]:
    for field in fields:
        kind, is_required = field.type, not field.nullable
        if pa.types.is_struct(kind):
            yield SchemaColumn(field.name, str(kind), is_required, "struct", tuple(_tree(kind)))
        elif pa.types.is_list(kind):
            inside = tuple(_tree([kind.value_field]))
            yield SchemaColumn(field.name, str(kind), is_required, "array", inside)
        elif pa.types.is_map(kind):
            inside = tuple(_tree([kind.key_field, kind.item_field]))
            yield SchemaColumn(field.name, str(kind), is_required, "map", inside)
        else:
            yield SchemaColumn(field.name, str(kind), is_required)


def _may_fit(given: str, table: str) -> bool:
    families = [
        "integer" if one in ("int32", "int64") else "decimal" if one.startswith("decimal") else one
        for one in (given, table)
    ]
    return families[0] == families[1]
