"""Conditions as SQL of Postgres, so that the server sends no rows that do not match, and can use indexes.

Numbers are compared as in Spark, NaN included. Texts are compared by their bytes, whatever the collation of
the column; `=` and `IN` find too many rows with a nondeterministic one. What has no rule here is left to
Arrow, such as `char(n)`, whose comparisons ignore spaces at the end.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from ...committers.postgres.address import literal, quoted
from ..predicates import Always, Comparison, IsIn, IsNull, Predicate, StartsWith
from ..sql_conditions import Literal, day, decimal, integer, moment, sql_of
from .types import PostgresColumn

_HEX = "\\x"


def postgres_filter(
    where: Predicate, columns: Mapping[str, PostgresColumn], *, compares_texts: bool
) -> str | None:
    """Return a condition that holds for all rows that match, and perhaps for others; None: there is none.

    Args:
        compares_texts: the database has the encoding UTF8, in which the order of bytes is that of characters,
            and that has every character
    """

    def leaf(one: Predicate) -> str | None:
        if isinstance(one, Always):
            return str(one.value)
        assert isinstance(one, IsNull | Comparison | IsIn | StartsWith)
        column = columns[one.path[0]]
        if isinstance(one, IsNull):
            return f"{quoted(column.name)} IS {'NOT ' if one.negated else ''}NULL"
        return _compared(one, column) if compares_texts or not _is_text(column) else None

    return sql_of(where, leaf)


def _compared(where: Comparison | IsIn | StartsWith, column: PostgresColumn) -> str | None:
    name, write = quoted(column.name), _literal(column)
    if write is None:
        return None
    by_bytes = f'{name} COLLATE "C"' if _is_text(column) else name
    if isinstance(where, StartsWith):
        return f"{'NOT ' if where.negated else ''}starts_with({by_bytes}, {write(where.text)})"
    if isinstance(where, IsIn):
        values = ", ".join(sorted(map(write, where.values)))
        return f"{by_bytes} NOT IN ({values})" if where.negated else f"{name} IN ({values})"
    # An index has the collation of the column
    return f"{name if where.operator == '=' else by_bytes} {where.operator} {write(where.value)}"


def _is_text(column: PostgresColumn) -> bool:
    return column.sql_type == "text" or column.sql_type.startswith("character varying")


def _literal(column: PostgresColumn) -> Literal | None:
    """Return what writes a value for the column; None: it is compared in Arrow only."""
    if _is_text(column):
        return literal
    types, data_type = pa.types, column.data_type
    assert data_type is not None
    if types.is_signed_integer(data_type):
        return integer
    if types.is_floating(data_type):
        return lambda value: f"'{value!r}'::float8"
    if types.is_decimal128(data_type):
        return lambda value: decimal(value, data_type.precision, data_type.scale)
    if types.is_boolean(data_type):
        return lambda value: str(bool(value))
    if types.is_binary(data_type):
        return lambda value: f"{literal(_HEX + value.hex())}::bytea"
    if types.is_date32(data_type):
        return day
    if types.is_timestamp(data_type):
        kind, zone = ("timestamp", "") if data_type.tz is None else ("timestamptz", "+00")
        return lambda value: f"'{moment(value)}{zone}'::{kind}"
    return None
