"""Conditions as Lance's SQL, with which Lance reads wide columns only of rows that match.

Every row that is found is compared again in Arrow, so a condition may find too many rows, but none too few.
Lance compares floats otherwise than Spark (-0.0 is less than 0.0), so they are left to Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ..predicates import AllOf, AnyOf, Comparison, IsIn, IsNull, Predicate

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  of columns with and without a time zone


def lance_filter(where: Predicate, columns: pa.Schema) -> str | None:
    """Return a condition that holds for all rows that match, and perhaps for others; None: there is none.

    Args:
        columns: of the table
    """
    if isinstance(where, AllOf):
        parts = [part for one in where.parts if (part := lance_filter(one, columns)) is not None]
        return " AND ".join(f"({part})" for part in parts) if parts else None
    if isinstance(where, AnyOf):
        found = [lance_filter(one, columns) for one in where.parts]
        if not found or any(part is None for part in found):
            return None
        return " OR ".join(f"({part})" for part in found)
    if isinstance(where, IsNull | Comparison | IsIn):
        return _leaf(where, columns)
    return None


def _leaf(where: IsNull | Comparison | IsIn, columns: pa.Schema) -> str | None:
    name = where.path[0]
    if len(where.path) > 1 or not name.isidentifier():
        return None
    data_type, column = columns.field(name).type, f"`{name}`"
    if pa.types.is_nested(data_type):
        return None
    if isinstance(where, IsNull):
        return f"{column} IS {'NOT ' if where.negated else ''}NULL"
    literal = _literals(data_type)
    if literal is None:
        return None
    if isinstance(where, IsIn):
        values = ", ".join(map(literal, where.values))
        return f"{column} {'NOT ' if where.negated else ''}IN ({values})"
    return f"{column} {where.operator} {literal(where.value)}"


def _literals(data_type: pa.DataType) -> Callable[[Any], str] | None:
    """Return what writes a value of `values` as a literal of the type; None: it is compared in Arrow only."""
    types = pa.types
    if types.is_signed_integer(data_type):
        return _integer
    if types.is_string(data_type):
        return _text
    if types.is_date32(data_type):
        return _day
    if types.is_timestamp(data_type) and data_type.unit == "us":
        return _moment if data_type.tz is None else _moment_in_utc
    if types.is_decimal128(data_type):
        kind = f"DECIMAL({data_type.precision}, {data_type.scale})"
        return lambda value: _decimal(value, kind)
    return None


def _integer(value: int) -> str:
    return f"CAST('{value}' AS BIGINT)"


def _text(value: str) -> str:
    quoted = value.replace("'", "''")
    return f"'{quoted}'"


def _day(value: int) -> str:
    return f"DATE '{date(1970, 1, 1) + timedelta(days=value)}'"


def _moment(value: int) -> str:
    return f"TIMESTAMP '{_EPOCH + timedelta(microseconds=value)}'"


def _moment_in_utc(value: int) -> str:
    return f"TIMESTAMP '{_EPOCH + timedelta(microseconds=value)}Z'"


def _decimal(value: Decimal, kind: str) -> str:
    return f"CAST('{value:f}' AS {kind})"
