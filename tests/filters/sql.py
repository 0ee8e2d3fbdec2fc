"""Filters in the SQL of Spark, DuckDB and DataFusion."""

from __future__ import annotations

import math
from datetime import date, datetime
from typing import Any

import pyarrow as pa
from tests.filters.rows import Filter

_TYPES: dict[str, dict[pa.DataType, str]] = {
    "spark": {pa.int8(): "BYTE", pa.int16(): "SHORT", pa.float32(): "FLOAT"},
    "duckdb": {pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.float32(): "FLOAT"},
    "datafusion": {pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.float32(): "REAL"},
}
_SAME_TYPES = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.float64(): "DOUBLE"}
_MOMENTS = {
    "spark": ("TIMESTAMP_NTZ", "TIMESTAMP"),
    "duckdb": ("TIMESTAMP", "TIMESTAMPTZ"),
    "datafusion": ("Timestamp(Microsecond, None)", 'Timestamp(Microsecond, Some("UTC"))'),
}
"""Without and with a zone."""


def where(dialect: str, one: Filter) -> str:
    """The condition of a WHERE."""
    column = _column(dialect, one.column)
    if one.operator in ("null", "not null"):
        return f"{column} IS {one.operator.upper()}"
    if one.operator == "nan":
        return f"isnan({column})"
    if one.operator == "prefix":
        return f"{column} LIKE '{one.value}%'"
    return f"{column} {one.operator} {literal(dialect, one.type, one.value)}"


def _column(dialect: str, name: str) -> str:
    top, _, field = name.partition(".")
    if field and dialect == "datafusion":
        return f"{top}['{field}']"
    return name


def literal(dialect: str, kind: pa.DataType, value: Any) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'" if dialect != "duckdb" else f"unhex('{value.hex()}')"
    if isinstance(value, str):
        return f"'{value}'"
    if isinstance(value, datetime):
        name = _MOMENTS[dialect][value.tzinfo is not None]
        text = value.isoformat(" ")
        return f"arrow_cast('{text}', '{name}')" if dialect == "datafusion" else f"{name} '{text}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if pa.types.is_decimal(kind):
        return f"CAST('{value:f}' AS DECIMAL({kind.precision}, {kind.scale}))"
    if pa.types.is_boolean(kind):
        return str(value)
    text = "NaN" if isinstance(value, float) and math.isnan(value) else str(value)
    return f"CAST('{text}' AS {(_SAME_TYPES | _TYPES[dialect])[kind]})"
