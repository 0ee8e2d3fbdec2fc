"""Conditions on rows: which files may have matching rows, and which rows match.

A condition is compared as Spark does: a comparison with NULL is neither true nor false, NaN equals NaN and is
greater than all other numbers, -0.0 equals 0.0. Every order is total then, so a negated comparison is the
opposite one, and conditions contain no NOT.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ..writers.parquet.columns import reach
from .values import Path, array_of, comparable, scalar_of


@dataclass(frozen=True, slots=True)
class ValueRange:
    """What is known of the values of a column in a file or row group. All values are as `values` has them."""

    low: Any = None
    """Not above any value, except for NaN; None: unknown."""
    high: Any = None
    """Not below any value, except for NaN; None: unknown."""
    may_be_null: bool = True
    may_be_value: bool = True
    """False: all are NULL."""
    may_be_nan: bool = True
    may_be: Callable[[Any], bool] = lambda _value: True
    """Returns False for a value between the two that none is equal to."""

    def narrowed(self, other: ValueRange) -> ValueRange:
        """Return what is known if both are true."""
        if other is UNKNOWN:
            return self
        return ValueRange(
            max((one.low for one in (self, other) if one.low is not None), default=None),
            min((one.high for one in (self, other) if one.high is not None), default=None),
            may_be_null=self.may_be_null and other.may_be_null,
            may_be_value=self.may_be_value and other.may_be_value,
            may_be_nan=self.may_be_nan and other.may_be_nan,
            may_be=lambda value: self.may_be(value) and other.may_be(value),
        )


Ranges: TypeAlias = Callable[[Path], ValueRange]
"""Returns what is known of a column."""

UNKNOWN = ValueRange()
ONLY_NULL = ValueRange(may_be_value=False, may_be_nan=False)


class Predicate(Protocol):
    """A condition. Can be pickled."""

    def may_match(self, ranges: Ranges) -> bool:
        """Return False if certainly no row matches."""
        ...

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        """Return for each row whether it matches. False and NULL mean the same."""
        ...

    def columns(self) -> Iterator[str]:
        """Yield the columns at the top level that it compares."""
        ...


@dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[Predicate, ...]

    def may_match(self, ranges: Ranges) -> bool:
        return all(part.may_match(ranges) for part in self.parts)

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        return reduce(pc.and_kleene, [part.mask(rows) for part in self.parts])

    def columns(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.columns()


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[Predicate, ...]

    def may_match(self, ranges: Ranges) -> bool:
        return any(part.may_match(ranges) for part in self.parts)

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        return reduce(pc.or_kleene, [part.mask(rows) for part in self.parts])

    def columns(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.columns()


@dataclass(frozen=True, slots=True)
class Always:
    """The same for all rows."""

    value: bool

    def may_match(self, ranges: Ranges) -> bool:
        return self.value

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        return _repeated(self.value, rows.num_rows)

    def columns(self) -> Iterator[str]:
        return iter(())


@dataclass(frozen=True, slots=True)
class IsNull:
    path: Path
    negated: bool = False

    def may_match(self, ranges: Ranges) -> bool:
        known = ranges(self.path)
        return known.may_be_value if self.negated else known.may_be_null

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        column = reach(rows.column(self.path[0]), self.path[1:])
        return pc.is_valid(column) if self.negated else pc.is_null(column)

    def columns(self) -> Iterator[str]:
        yield self.path[0]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison with one value, which is not NULL."""

    path: Path
    operator: str
    """`=`, `!=`, `<`, `<=`, `>` or `>=`"""
    value: Any

    def may_match(self, ranges: Ranges) -> bool:
        known = ranges(self.path)
        if not known.may_be_value:
            return False
        if _is_nan(self.value):
            return _may_compare_with_nan(self.operator, known)
        if self.operator in _NAN_MATCHES and known.may_be_nan and _is_float(self.value):
            return True
        return _may_compare(self.operator, self.value, known)

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        column = comparable(rows, self.path)
        if not _is_float(self.value):
            return _COMPARE[self.operator](column, scalar_of(self.value, column.type))
        is_nan = pc.is_nan(column)
        if _is_nan(self.value):
            return _compared_with_nan(self.operator, is_nan, column)
        found = _COMPARE[self.operator](column, scalar_of(self.value, column.type))
        return pc.or_(found, is_nan) if self.operator in _NAN_MATCHES else found

    def columns(self) -> Iterator[str]:
        yield self.path[0]


@dataclass(frozen=True, slots=True)
class IsIn:
    """Whether a value is one of several, none of which is NULL or NaN."""

    path: Path
    values: tuple[Any, ...]
    negated: bool = False

    def may_match(self, ranges: Ranges) -> bool:
        known = ranges(self.path)
        if not known.may_be_value:
            return False
        if self.negated:
            return not (_is_one_value(known) and known.low in self.values)
        return any(_may_compare("=", value, known) for value in self.values)

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        column = comparable(rows, self.path)
        found = pc.is_in(column, value_set=array_of(self.values, column.type))
        return _only_values(pc.invert(found) if self.negated else found, column)

    def columns(self) -> Iterator[str]:
        yield self.path[0]


@dataclass(frozen=True, slots=True)
class StartsWith:
    """Whether a text begins with another one."""

    path: Path
    text: str
    negated: bool = False

    def may_match(self, ranges: Ranges) -> bool:
        known = ranges(self.path)
        if not known.may_be_value or known.low is None or known.high is None:
            return known.may_be_value
        if self.negated:
            return not (known.low.startswith(self.text) and known.high.startswith(self.text))
        return bool(known.low[: len(self.text)] <= self.text <= known.high)

    def mask(self, rows: pa.RecordBatch) -> pa.Array:
        found = pc.starts_with(comparable(rows, self.path), pattern=self.text)
        return pc.invert(found) if self.negated else found

    def columns(self) -> Iterator[str]:
        yield self.path[0]


# Comparing ------------------------------------------------------------------------------------------------

_COMPARE: Mapping[str, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_NAN_MATCHES = ("!=", ">", ">=")
"""Comparisons with a number that are true for NaN."""


def _may_compare(operator: str, value: Any, known: ValueRange) -> bool:
    """For a value that is not NaN, and values that are not."""
    if operator == "=":
        is_between = (known.low is None or known.low <= value) and (known.high is None or value <= known.high)
        return is_between and known.may_be(value)
    if operator == "!=":
        return not (_is_one_value(known) and known.low == value)
    if operator in ("<", "<="):
        return known.low is None or bool(known.low < value or (operator == "<=" and known.low == value))
    return known.high is None or bool(known.high > value or (operator == ">=" and known.high == value))


def _is_one_value(known: ValueRange) -> bool:
    return known.low is not None and known.low == known.high


def _may_compare_with_nan(operator: str, known: ValueRange) -> bool:
    return known.may_be_nan if operator in ("=", ">=") else operator != ">"


def _compared_with_nan(operator: str, is_nan: pa.Array, column: pa.Array) -> pa.Array:
    if operator in ("=", ">="):
        return is_nan
    if operator in ("!=", "<"):
        return pc.invert(is_nan)
    return _only_values(_repeated(operator == "<=", len(column)), column)


def _is_float(value: Any) -> bool:
    return isinstance(value, float)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _only_values(found: pa.Array, column: pa.Array) -> pa.Array:
    return found if not column.null_count else pc.and_(found, pc.is_valid(column))


def _repeated(value: bool, count: int) -> pa.Array:
    column = pc.is_valid(pa.nulls(count, pa.int8()))
    return pc.invert(column) if value else column
