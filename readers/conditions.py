"""Makes conditions for the columns of a table, from names and values of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, timezone
from decimal import ROUND_FLOOR, Context, Decimal
from typing import Any

import pyarrow as pa

from .predicates import AllOf, Always, AnyOf, Comparison, IsIn, IsNull, Predicate, StartsWith
from .values import (
    Path,
    days,
    integer_range,
    is_comparable,
    microseconds,
    parse_date,
    parse_timestamp,
    struct_field,
)

OPPOSITES = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class UnfitValueError(ValueError):
    """A condition does not fit the columns."""


class Conditions:
    """Makes conditions for the columns of a table. Values have any Python type that fits their column.

    Every method raises `UnfitValueError` for what does not fit.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def compare(self, name: Sequence[str], operator: str, value: Any) -> Predicate:
        path, data_type = self._column(name)
        if pa.types.is_floating(data_type):
            return Comparison(path, operator, _float(value, path))
        if pa.types.is_decimal128(data_type) or pa.types.is_signed_integer(data_type):
            return _compared_exactly(path, data_type, operator, _number(value, path))
        return Comparison(path, operator, _value(value, data_type, path))

    def is_in(self, name: Sequence[str], values: Iterable[Any], *, negated: bool = False) -> Predicate:
        path, data_type = self._column(name)
        if pa.types.is_string(data_type) or pa.types.is_date32(data_type) or pa.types.is_timestamp(data_type):
            found = tuple(dict.fromkeys(_value(one, data_type, path) for one in values))
            return IsIn(path, found, negated) if found else Always(False)
        parts = tuple(self.compare(name, "!=" if negated else "=", one) for one in values)
        return AllOf(parts) if negated else AnyOf(parts)

    def is_null(self, name: Sequence[str], *, negated: bool = False) -> Predicate:
        return IsNull(self._path(name)[0], negated)

    def is_nan(self, name: Sequence[str], *, negated: bool = False) -> Predicate:
        path, data_type = self._column(name)
        if not pa.types.is_floating(data_type):
            raise UnfitValueError(f"the column {'.'.join(path)} is {data_type}, which has no NaN")
        return Comparison(path, "!=" if negated else "=", float("nan"))

    def starts_with(self, name: Sequence[str], text: str, *, negated: bool = False) -> Predicate:
        path, data_type = self._column(name)
        if not pa.types.is_string(data_type):
            raise UnfitValueError(f"the column {'.'.join(path)} is {data_type} and not a string")
        return StartsWith(path, text, negated)

    def _path(self, name: Sequence[str]) -> tuple[Path, pa.DataType]:
        found = struct_field(list(self._schema), name)
        if found is None:
            raise UnfitValueError(
                f"there is no column {'.'.join(name)}. The table has {', '.join(self._schema.names)}"
            )
        return found

    def _column(self, name: Sequence[str]) -> tuple[Path, pa.DataType]:
        path, data_type = self._path(name)
        if not is_comparable(data_type):
            raise UnfitValueError(f"the column {'.'.join(path)} is {data_type}, which cannot be compared")
        return path, data_type


# Values ---------------------------------------------------------------------------------------------------


def _float(value: Any, path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _unfit(value, path, "a number")
    return float(value)


def _number(value: Any, path: Path) -> Decimal:
    """Return the exact value; that of a float is its shortest text."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _unfit(value, path, "a number")
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite():
        raise _unfit(value, path, "a finite number")
    return number


_EXACT = Context(prec=200)


def _compared_exactly(path: Path, data_type: pa.DataType, operator: str, number: Decimal) -> Predicate:
    """Compare with a number that may have more digits than the type."""
    is_decimal = pa.types.is_decimal128(data_type)
    scale = data_type.scale if is_decimal else 0
    highest = 10**data_type.precision - 1 if is_decimal else integer_range(data_type)[1]
    lowest = -highest if is_decimal else integer_range(data_type)[0]
    is_huge = number.adjusted() >= _EXACT.prec // 2
    steps = Decimal(0) if is_huge else number.scaleb(scale, _EXACT).to_integral_value(ROUND_FLOOR, _EXACT)
    if is_huge or not lowest <= steps <= highest:
        are_less = number > 0  # all values of the type
        matches = operator == "!=" or operator in (("<", "<=") if are_less else (">", ">="))
        return IsNull(path, negated=True) if matches else Always(False)
    nearest = steps.scaleb(-scale, _EXACT)
    value = nearest if is_decimal else int(nearest)
    is_exact = nearest == number
    if is_exact:
        return Comparison(path, operator, value)
    if operator in ("=", "!="):
        return IsNull(path, negated=True) if operator == "!=" else Always(False)
    return Comparison(path, "<=" if operator in ("<", "<=") else ">", value)


def _value(value: Any, data_type: pa.DataType, path: Path) -> Any:
    types = pa.types
    try:
        if types.is_boolean(data_type) and isinstance(value, bool):
            return int(value)
        if types.is_string(data_type) and isinstance(value, str):
            return value
        if types.is_binary(data_type) and isinstance(value, bytes | bytearray):
            return bytes(value)
        if types.is_date32(data_type):
            return _date(value)
        if types.is_timestamp(data_type):
            return _timestamp(value, has_zone=data_type.tz is not None)
    except ValueError as error:
        raise _unfit(value, path, f"{data_type}: {error}") from None
    raise _unfit(value, path, str(data_type))


def _date(value: Any) -> int:
    if isinstance(value, str):
        return parse_date(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        return days(value)
    raise ValueError("give a text such as '2026-11-29'")


def _timestamp(value: Any, *, has_zone: bool) -> int:
    if isinstance(value, str):
        return parse_timestamp(value, has_zone=has_zone)
    if isinstance(value, datetime):
        return microseconds(value.replace(tzinfo=timezone.utc) if not has_zone else value)
    raise ValueError("give a text such as '2026-11-29T10:00:00'")


def _unfit(value: Any, path: Path, wanted: str) -> UnfitValueError:
    return UnfitValueError(f"the column {'.'.join(path)} is not comparable with {value!r}: it is {wanted}")
