"""Conditions of readers: an expression like that of a WHERE clause, for the columns of a table.

pyiceberg parses it: comparisons, BETWEEN, IN, IS NULL, IS NAN, LIKE 'a%', AND, OR, NOT, with names in double
quotes if they are no plain words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
from pyiceberg.expressions import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, visit

from ..committers.errors import ConfigurationError, shown
from .conditions import OPPOSITES, Conditions, UnfitValueError
from .predicates import AllOf, Always, AnyOf, Predicate

Deferred: TypeAlias = Callable[..., Predicate]
"""Makes a condition, or its negation with `negated=True`."""

_OPERATORS: dict[type, str] = {
    EqualTo: "=",
    NotEqualTo: "!=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}


class ToPredicate(BooleanExpressionVisitor[Deferred]):
    """Converts a parsed expression, and moves each NOT to the comparisons."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions

    def visit_true(self) -> Deferred:
        return lambda *, negated=False: Always(not negated)

    def visit_false(self) -> Deferred:
        return lambda *, negated=False: Always(negated)

    def visit_not(self, child_result: Deferred) -> Deferred:
        return lambda *, negated=False: child_result(negated=not negated)

    def visit_and(self, left_result: Deferred, right_result: Deferred) -> Deferred:
        def make(*, negated: bool = False) -> Predicate:
            parts = (left_result(negated=negated), right_result(negated=negated))
            return AnyOf(parts) if negated else AllOf(parts)

        return make

    def visit_or(self, left_result: Deferred, right_result: Deferred) -> Deferred:
        def make(*, negated: bool = False) -> Predicate:
            parts = (left_result(negated=negated), right_result(negated=negated))
            return AllOf(parts) if negated else AnyOf(parts)

        return make

    def visit_bound_predicate(self, predicate: Any) -> Deferred:
        raise NotImplementedError("parsed expressions are not bound")

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> Deferred:
        return lambda *, negated=False: self._leaf(predicate, negated)

    def _leaf(self, predicate: Any, negated: bool) -> Predicate:
        name = str(predicate.term.name).split(".")
        make = self._conditions
        if isinstance(predicate, IsNull | NotNull):
            return make.is_null(name, negated=isinstance(predicate, NotNull) != negated)
        if isinstance(predicate, IsNaN | NotNaN):
            return make.is_nan(name, negated=isinstance(predicate, NotNaN) != negated)
        if isinstance(predicate, In | NotIn):
            values = [literal.value for literal in predicate.literals]
            return make.is_in(name, values, negated=isinstance(predicate, NotIn) != negated)
        value = predicate.literal.value
        if isinstance(predicate, StartsWith | NotStartsWith):
            is_negated = isinstance(predicate, NotStartsWith) != negated
            return make.starts_with(name, value, negated=is_negated)
        operator = _OPERATORS[type(predicate)]
        return make.compare(name, OPPOSITES[operator] if negated else operator, value)


_UNKNOWN_WILDCARD = re.compile(r"\blike\s+'(?:[^']|'')*_", re.IGNORECASE)


def parse_where(text: str, schema: pa.Schema) -> Predicate:
    """Parse the option `where`.

    Args:
        schema: the columns of the table

    Raises:
        ConfigurationError: it cannot be parsed, or does not fit the columns.
    """
    if _UNKNOWN_WILDCARD.search(text):
        raise _wrong(text, "LIKE knows only % at the end, and no _", schema)
    try:
        parsed = parse(text)
    except Exception as error:  # noqa: BLE001  the parser raises errors of its own library
        raise _wrong(text, str(error).partition("\n")[0], schema) from None
    try:
        return visit(parsed, ToPredicate(Conditions(schema)))()
    except UnfitValueError as error:
        raise _wrong(text, str(error), schema) from None


def _wrong(text: str, problem: str, schema: pa.Schema) -> ConfigurationError:
    return ConfigurationError(
        f"where={shown(text)}: {problem}. Give a condition over the columns ({', '.join(schema.names)}), "
        "such as day >= '2026-01-01' AND amount IS NOT NULL. Nothing was read."
    )
