"""The option `deleteWhen`: an expression over the columns of a query. Runs on the driver.

pyiceberg parses it: comparisons, IN, IS NULL, LIKE 'a%', AND, OR, NOT, as in SQL. Tasks get it as an
expression of Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, visit

from ...committers.errors import ConfigurationError, shown


def condition(text: str, rows: pa.Schema) -> pc.Expression:
    """Return the expression, which is true for the rows that delete.

    Args:
        text: an expression, or the name of a boolean column

    Raises:
        ConfigurationError: it cannot be parsed, or does not fit the columns.
    """
    names = {name.lower(): name for name in rows.names}
    column = names.get(text.strip().strip("`").lower())
    if column is not None:
        if not pa.types.is_boolean(rows.field(column).type):
            raise _wrong(text, f"the column {column} is {rows.field(column).type} and not boolean", rows)
        return pc.field(column)
    try:
        parsed = parse(text)
    except Exception as error:  # noqa: BLE001  the parser raises errors of its own library
        raise _wrong(text, str(error).partition("\n")[0], rows) from None
    try:
        expression = visit(parsed, _ToArrow(rows))
        rows.empty_table().filter(expression)
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001  so does the conversion
        raise _wrong(text, str(error).partition("\n")[0], rows) from None
    return expression


def _wrong(text: str, problem: str, rows: pa.Schema) -> ConfigurationError:
    return ConfigurationError(
        f"deleteWhen={shown(text)}: {problem}. Give a condition over the columns of the query "
        f"({', '.join(rows.names)}), such as op = 'd', or the name of a boolean column. Nothing was written."
    )


class _ToArrow(BooleanExpressionVisitor[Any]):
    """Converts a parsed expression. Column names ignore case."""

    def __init__(self, rows: pa.Schema) -> None:
        self._rows = rows

    def visit_true(self) -> Any:
        return pc.scalar(True)

    def visit_false(self) -> Any:
        return pc.scalar(False)

    def visit_not(self, child_result: Any) -> Any:
        return ~child_result

    def visit_and(self, left_result: Any, right_result: Any) -> Any:
        return left_result & right_result

    def visit_or(self, left_result: Any, right_result: Any) -> Any:
        return left_result | right_result

    def visit_bound_predicate(self, predicate: Any) -> Any:
        raise NotImplementedError("parsed expressions are not bound")

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> Any:
        field, data_type = self._column(str(predicate.term.name))  # type: ignore[attr-defined]
        kind = type(predicate)
        if kind in _UNARY:
            return _UNARY[kind](field)
        if isinstance(predicate, In | NotIn):
            values = [_scalar(one, data_type) for one in predicate.literals]
            found = field.isin(pa.array([value.as_py() for value in values], data_type))
            return found if isinstance(predicate, In) else ~found & field.is_valid()
        value = _scalar(predicate.literal, data_type)  # type: ignore[attr-defined]
        return _BINARY[kind](field, value)

    def _column(self, name: str) -> tuple[pc.Expression, pa.DataType]:
        path, fields = [], list(self._rows)
        data_type = None
        for part in name.split("."):
            found = next((one for one in fields if one.name.lower() == part.lower()), None)
            if found is None:
                raise ConfigurationError(
                    f"deleteWhen names {shown(name)}, and the query has only the columns "
                    f"{', '.join(self._rows.names)}. Nothing was written."
                )
            path.append(found.name)
            data_type = found.type
            fields = list(data_type) if pa.types.is_struct(data_type) else []
        return pc.field(*path) if len(path) > 1 else pc.field(path[0]), data_type


_UNARY: dict[type, Callable[[pc.Expression], pc.Expression]] = {
    IsNull: lambda field: field.is_null(),
    NotNull: lambda field: field.is_valid(),
    IsNaN: lambda field: pc.is_nan(field),
    NotNaN: lambda field: ~pc.is_nan(field),
}
_BINARY: dict[type, Callable[[pc.Expression, pa.Scalar], pc.Expression]] = {
    EqualTo: lambda field, value: field == value,
    NotEqualTo: lambda field, value: field != value,
    LessThan: lambda field, value: field < value,
    LessThanOrEqual: lambda field, value: field <= value,
    GreaterThan: lambda field, value: field > value,
    GreaterThanOrEqual: lambda field, value: field >= value,
    StartsWith: lambda field, value: pc.starts_with(field, value.as_py()),
    NotStartsWith: lambda field, value: ~pc.starts_with(field, value.as_py()),
}


def _scalar(literal: Literal[Any], data_type: pa.DataType) -> pa.Scalar:
    """
    Raises:
        pa.ArrowException: the value does not have the type of the column.
    """
    return pa.scalar(literal.value).cast(data_type)
