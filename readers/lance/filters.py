"""Conditions as Lance's SQL, with which Lance reads wide columns only of rows that match.

Lance compares floats otherwise than Spark (-0.0 is less than 0.0), so they are left to Arrow.
"""

from __future__ import annotations

import pyarrow as pa

from ..predicates import Comparison, IsIn, IsNull, Predicate
from ..sql_conditions import Literal, day, decimal, integer, moment, sql_of


def lance_filter(where: Predicate, columns: pa.Schema) -> str | None:
    """Return a condition that holds for all rows that match, and perhaps for others; None: there is none.

    Args:
        columns: of the table
    """
    return sql_of(where, lambda leaf: _leaf(leaf, columns))


def _leaf(where: Predicate, columns: pa.Schema) -> str | None:
    if not isinstance(where, IsNull | Comparison | IsIn):
        return None
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


def _literals(data_type: pa.DataType) -> Literal | None:
    """Return what writes a value of the type; None: it is compared in Arrow only."""
    types = pa.types
    if types.is_signed_integer(data_type):
        return integer
    if types.is_string(data_type):
        return _text
    if types.is_date32(data_type):
        return day
    if types.is_timestamp(data_type) and data_type.unit == "us":
        zone = "" if data_type.tz is None else "Z"
        return lambda value: f"TIMESTAMP '{moment(value)}{zone}'"
    if types.is_decimal128(data_type):
        return lambda value: decimal(value, data_type.precision, data_type.scale)
    return None


def _text(value: str) -> str:
    quoted = value.replace("'", "''")
    return f"'{quoted}'"
