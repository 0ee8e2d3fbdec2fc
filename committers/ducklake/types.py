"""Arrow types and the DuckDB types of DuckLake columns that store them without loss."""

from __future__ import annotations

import re
from typing import cast

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from ..postgres.address import quoted

_SQL_TYPES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
}
_WIDER = {
    "TINYINT": {"SMALLINT", "INTEGER", "BIGINT"},
    "SMALLINT": {"INTEGER", "BIGINT"},
    "INTEGER": {"BIGINT"},
    "FLOAT": {"DOUBLE"},
}
_INTEGERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT"}


def normal(data_type: pa.DataType) -> pa.DataType:
    """The type in DuckLake's terms: one string type, one list type, UTC, nullable inside."""
    types = pa.types
    if types.is_timestamp(data_type) and data_type.unit == "us":
        return pa.timestamp("us", "UTC" if data_type.tz else None)
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        return pa.string()
    if types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return pa.binary()
    if types.is_list(data_type) or types.is_large_list(data_type):
        return pa.list_(pa.field("element", normal(data_type.value_type)))
    if types.is_struct(data_type):
        return pa.struct([pa.field(child.name, normal(child.type)) for child in data_type])
    if types.is_map(data_type):
        return pa.map_(normal(data_type.key_type), normal(data_type.item_type))
    return data_type


def sql_type(data_type: pa.DataType) -> str | None:
    """The SQL type of a column for a `normal` type; None if DuckLake has none that stores it without loss."""
    types = pa.types
    if types.is_decimal128(data_type):
        return f"DECIMAL({data_type.precision},{data_type.scale})"
    if types.is_list(data_type):
        element = sql_type(data_type.value_type)
        return None if element is None else f"{element}[]"
    if types.is_struct(data_type) and len(data_type):
        inside = [(child.name, sql_type(child.type)) for child in data_type]
        names = {name.lower() for name, _ in inside}
        if len(names) < len(inside) or any(one is None for _, one in inside):
            return None
        return f"STRUCT({', '.join(f'{quoted(name)} {one}' for name, one in inside)})"
    if types.is_map(data_type):
        key, item = sql_type(data_type.key_type), sql_type(data_type.item_type)
        return None if key is None or item is None else f"MAP({key}, {item})"
    return _SQL_TYPES.get(data_type)


def holds(given: str, table: str) -> bool:
    """True if a column of the second SQL type stores every value of the first one unchanged."""
    narrow, wide = _decimal(given), _decimal(table)
    if narrow and wide:
        return wide[1] >= narrow[1] and wide[0] - wide[1] >= narrow[0] - narrow[1]
    return table in _WIDER.get(given, ())


def files_hold(given: str, table: str) -> bool:
    """True if files with the first SQL type can be added to a column of the second one without loss."""
    return _files_hold(duckdb.sqltype(given), duckdb.sqltype(table))


def _files_hold(given: DuckDBPyType, table: DuckDBPyType) -> bool:
    if str(given) == str(table) or holds(str(given), str(table)):
        return True
    if given.id != table.id or given.id not in ("list", "struct", "map"):
        return False
    inside = _children(table)
    return all(name in inside and _files_hold(kind, inside[name]) for name, kind in _children(given).items())


def _children(nested: DuckDBPyType) -> dict[str, DuckDBPyType]:
    return dict(cast("list[tuple[str, DuckDBPyType]]", nested.children))


def may_hold(given: str, table: str) -> bool:
    """True if a column of the second SQL type stores some values of the first one unchanged."""
    are_decimals = _decimal(given) is not None and _decimal(table) is not None
    return holds(given, table) or are_decimals or {given, table} <= _INTEGERS


def _decimal(column: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", column)
    return (int(match[1]), int(match[2])) if match else None
