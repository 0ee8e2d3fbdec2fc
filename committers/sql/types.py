"""Arrow types and the types of columns that store them without loss, whatever a database calls them.

`schema` converts these types to those of SQLAlchemy and back. Importable on executors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from .backends import Backend

_SQL_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double",
    pa.string(): "text",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.timestamp("us"): "timestamp",
}
_ARROW_TYPES = {kind: data_type for data_type, kind in _SQL_TYPES.items()}
DATETIME = "datetime"
"""A column of a database without time zones. Points in time are in UTC."""
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
_DECIMAL = re.compile(r"decimal\((\d{1,3}),(\d{1,3})\)")


@dataclass(frozen=True, slots=True)
class SqlTypes:
    """See `TypeRules`."""

    backend: Backend

    def sql_type(self, data_type: pa.DataType, /) -> str | None:
        if pa.types.is_decimal128(data_type):
            is_exact = data_type.precision <= self.backend.decimal_digits_max and data_type.scale >= 0
            return f"decimal({data_type.precision},{data_type.scale})" if is_exact else None
        kind = _SQL_TYPES.get(data_type)
        has_time = kind in ("timestamp", "timestamptz")
        return DATETIME if has_time and not self.backend.has_zones else kind

    def arrow_type(self, column: str, /) -> pa.DataType:
        if size := _decimal(column):
            return pa.decimal128(*size) if size[0] <= 38 else pa.string()
        if column == DATETIME:
            return pa.timestamp("us")
        return _ARROW_TYPES.get(column, pa.string())

    def holds(self, column: str, data_type: pa.DataType, /) -> bool:
        own = self.sql_type(data_type)
        return own is not None and self.takes(column, own)

    def may_hold(self, column: str, data_type: pa.DataType, /) -> bool:
        is_number = pa.types.is_signed_integer(data_type) or pa.types.is_decimal128(data_type)
        return self.holds(column, data_type) or (is_number and _number(column) is not None)

    def widened(self, column: str, data_type: pa.DataType, /) -> str | None:
        """None: options allow only new columns."""
        return None

    def can_widen(self, column: str, staged: str, /) -> bool:
        return False

    def takes(self, column: str, staged: str, /) -> bool:
        if staged == column or (staged, column) == ("real", "double"):
            return True
        given, wanted = _number(staged), _number(column)
        if given is None or wanted is None:
            return False
        return wanted[1] >= given[1] and wanted[0] - wanted[1] >= given[0] - given[1]

    def is_staged_as(self, column: str, /) -> bool:
        return is_staged_as(column)

    def text_type(self, column: str, data_type: pa.DataType, /) -> pa.DataType:
        return data_type if pa.types.is_timestamp(data_type) else self.arrow_type(column)


def is_staged_as(column: str) -> bool:
    """See `TypeRules`."""
    return column == DATETIME or column in _ARROW_TYPES or _decimal(column) is not None


def _number(column: str) -> tuple[int, int] | None:
    """(precision, scale) of a number without binary fractions."""
    return (_DIGITS[column], 0) if column in _DIGITS else _decimal(column)


def _decimal(column: str) -> tuple[int, int] | None:
    match = _DECIMAL.fullmatch(column)
    return None if match is None else (int(match[1]), int(match[2]))
