"""Conditions as SQL, so that an engine leaves out rows that do not match.

Every row that is found is compared again in Arrow, so a condition in SQL may find too many rows, but none too
few.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

from .predicates import AllOf, AnyOf, Predicate

Literal: TypeAlias = Callable[[Any], str]
"""Writes a value of `values` as a literal."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  of columns with and without a time zone


def sql_of(where: Predicate, leaf: Callable[[Predicate], str | None]) -> str | None:
    """Return a condition that holds for all rows that match, and perhaps for others; None: there is none.

    Args:
        leaf: returns the condition for a predicate on one column
    """
    if isinstance(where, AllOf):
        parts = [part for one in where.parts if (part := sql_of(one, leaf)) is not None]
        return " AND ".join(f"({part})" for part in parts) if parts else None
    if isinstance(where, AnyOf):
        found = [sql_of(one, leaf) for one in where.parts]
        if not found or any(part is None for part in found):
            return None
        return " OR ".join(f"({part})" for part in found)
    return leaf(where)


def integer(value: int) -> str:
    return f"CAST('{value}' AS BIGINT)"


def day(value: int) -> str:
    """
    Args:
        value: days since 1970
    """
    return f"DATE '{date(1970, 1, 1) + timedelta(days=value)}'"


def moment(value: int) -> datetime:
    """
    Args:
        value: microseconds since 1970
    """
    return _EPOCH + timedelta(microseconds=value)


def decimal(value: Decimal, precision: int, scale: int) -> str:
    return f"CAST('{value:f}' AS DECIMAL({precision}, {scale}))"
