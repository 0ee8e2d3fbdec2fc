"""Columns of a Postgres table: which Arrow type has their values, and how the server is asked for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...committers.errors import TableNotSupportedError
from ...committers.postgres.address import quoted
from ...committers.postgres.types import arrow_type, sql_type

_TEXTS = {
    *("text", "character varying", "character", "name", '"char"', "uuid", "json", "jsonb", "xml"),
    *("inet", "cidr", "macaddr", "macaddr8", "interval"),
}
"""Types without a type of Arrow that are read as text, as Spark's JDBC source does."""
_MODIFIER = re.compile(r"\([^)]*\)")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_DIGITS_MAX = 38
UNLIMITED = pa.decimal128(_DIGITS_MAX, 18)
"""`numeric` without a precision, as in Spark's JDBC source. Larger values are errors when they are read."""


@dataclass(frozen=True, slots=True)
class PostgresColumn:
    name: str
    sql_type: str
    """In the form of `format_type`; of a domain, what it is based on."""
    is_enum: bool
    """Its values, or its elements, are those of an enumeration."""
    is_required: bool
    """Certainly without NULL."""

    @property
    def data_type(self) -> pa.DataType | None:
        """The Arrow type; None: it cannot be read."""
        if self.sql_type.endswith("[]"):
            element = self._of(self.sql_type[:-2])
            return None if element is None else pa.list_(element)
        return self._of(self.sql_type)

    def _of(self, kind: str) -> pa.DataType | None:
        plain = _MODIFIER.sub("", kind)  # timestamp(3), character varying(10)
        if self.is_enum or plain in _TEXTS:
            return pa.string()
        if plain == "numeric":
            return _decimal(kind)
        found = arrow_type(plain)
        return found if sql_type(found) == plain else None

    @property
    def selected(self) -> str:
        """The column in a SELECT whose result is copied as CSV: see `CopiedRows`."""
        name = quoted(self.name)
        if self.sql_type == "bytea":
            return f"encode({name}, 'hex')"
        return f"trim_scale({name})" if self.sql_type == "numeric" else name


def _decimal(kind: str) -> pa.DataType | None:
    match = _NUMERIC.fullmatch(kind)
    if match is None:
        return UNLIMITED
    precision, scale = int(match[1]), int(match[2])
    precision, scale = max(precision, precision - scale, scale), max(scale, 0)
    return pa.decimal128(precision, scale) if precision <= _DIGITS_MAX else None


def schema_of(columns: Sequence[PostgresColumn], table: str) -> pa.Schema:
    """
    Args:
        table: for messages

    Raises:
        TableNotSupportedError: a column has a type that cannot be read.
    """
    for column in columns:
        if column.data_type is None:
            raise TableNotSupportedError(
                f"{table[0].upper()}{table[1:]} cannot be read: the column {column.name!r} is "
                f"{column.sql_type}, which Penstock does not read. Nothing was read. Give the other columns "
                f"in the option columns, or read a view that has {quoted(column.name)}::text."
            )
    return pa.schema([pa.field(one.name, one.data_type, nullable=not one.is_required) for one in columns])
