"""Random conditions of the option `where`, and what they mean."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

NAN = math.nan
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [None, -(2**31), -1, 0, 1, 2, 2**31 - 1]),
    "f": (pa.float64(), [None, -math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, NAN]),
    "d": (pa.decimal128(5, 2), [None, Decimal("-999.99"), Decimal("0.00"), Decimal("1.50")]),
    "s": (pa.string(), [None, "", "a", "ab", "b", "é"]),
    "day": (pa.date32(), [None, date(1, 1, 1), date(1969, 12, 31), date(2026, 11, 29)]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
LITERALS: dict[str, list[tuple[str, Any]]] = {
    "i": [
        ("-1", -1),
        ("0", 0),
        ("1.5", Decimal("1.5")),
        ("3000000000", 3 * 10**9),
        ("-3000000000", -3 * 10**9),
    ],
    "f": [("-1.5", -1.5), ("0.0", 0.0), ("1", 1.0)],
    "d": [
        ("1.5", Decimal("1.5")),
        ("0.001", Decimal("0.001")),
        ("99999", Decimal(99999)),
        ("-0.5", Decimal("-0.5")),
    ],
    "s": [("'a'", "a"), ("''", ""), ("'é'", "é")],
    "day": [("'1969-12-31'", date(1969, 12, 31)), ("'2026-01-01'", date(2026, 1, 1))],
}

Row = dict[str, Any]
Truth = Callable[[Row], "bool | None"]


def order(value: Any) -> tuple[bool, Any]:
    """NaN is the highest number."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return is_nan, 0 if is_nan else value


def comparisons(name: str) -> Iterator[tuple[str, Truth]]:
    """Conditions on one column, and what they mean."""
    operators: dict[str, Callable[[Any, Any], bool]] = {
        "=": lambda a, b: a == b,
        "!=": lambda a, b: a != b,
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }
    for text, literal in LITERALS[name]:
        for operator, compare in operators.items():

            def holds(row: Row, compare: Any = compare, literal: Any = literal) -> bool | None:
                value = row[name]
                return None if value is None else bool(compare(order(value), order(literal)))

            yield f"{name} {operator} {text}", holds
    texts = ", ".join(text for text, _ in LITERALS[name][:2])
    values = [literal for _, literal in LITERALS[name][:2]]
    yield f"{name} IN ({texts})", lambda row: None if row[name] is None else row[name] in values
    yield f"{name} NOT IN ({texts})", lambda row: None if row[name] is None else row[name] not in values
    yield f"{name} IS NULL", lambda row: row[name] is None
    yield f"{name} IS NOT NULL", lambda row: row[name] is not None


LEAVES = [
    *(one for name in COLUMNS for one in comparisons(name)),
    ("f IS NAN", lambda row: None if row["f"] is None else math.isnan(row["f"])),
    ("f IS NOT NAN", lambda row: None if row["f"] is None else not math.isnan(row["f"])),
    ("s LIKE 'a%'", lambda row: None if row["s"] is None else row["s"].startswith("a")),
    ("s NOT LIKE 'a%'", lambda row: None if row["s"] is None else not row["s"].startswith("a")),
]


def condition(chance: random.Random, depth: int) -> tuple[str, Truth]:
    """A random condition, and what it means in SQL's logic of three values."""
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(LEAVES)
    kind = chance.choice(["NOT", "AND", "OR"])
    left, is_left = condition(chance, depth - 1)
    if kind == "NOT":
        return f"NOT ({left})", lambda row: None if (found := is_left(row)) is None else not found
    right, is_right = condition(chance, depth - 1)
    decides = kind == "OR"

    def both(row: Row) -> bool | None:
        found = (is_left(row), is_right(row))
        return decides if decides in found else None if None in found else not decides

    return f"({left}) {kind} ({right})", both


def rows_of(chance: random.Random, count: int) -> list[Row]:
    return [{name: chance.choice(values) for name, (_, values) in COLUMNS.items()} for _ in range(count)]
