"""Conditions are compared as Spark does, and say what is wrong with them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock import ConfigurationError
from penstock.readers.predicates import UNKNOWN, ValueRange
from penstock.readers.values import Path, comparable
from penstock.readers.where import parse_where

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


def ranges_of(batch: pa.RecordBatch) -> Callable[[Path], ValueRange]:
    """The narrowest ranges that are true for the rows."""

    def known(path: Path) -> ValueRange:
        values = comparable(batch, path).to_pylist()
        numbers = [one for one in values if one is not None and one == one]
        return ValueRange(
            min(numbers, default=None),
            max(numbers, default=None),
            may_be_null=None in values,
            may_be_value=any(one is not None for one in values),
            may_be_nan=any(one is not None and one != one for one in values),
        )

    return known


@pytest.mark.parametrize("seed", range(20))
def test_a_condition_finds_the_rows_that_sql_finds_and_no_file_of_theirs_is_skipped(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        text, holds = condition(chance, depth=3)
        predicate = parse_where(text, SCHEMA)
        rows = rows_of(chance, chance.choice([1, 2, 30]))
        batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
        expected = [row for row in rows if holds(row) is True]
        found = batch.filter(predicate.mask(batch))
        assert repr(found.to_pylist()) == repr(expected), text
        if expected:
            assert predicate.may_match(ranges_of(batch)), text
            assert predicate.may_match(lambda path: UNKNOWN), text


@pytest.mark.parametrize(("text", "holds"), LEAVES, ids=[text for text, _ in LEAVES])
def test_a_file_of_one_value_is_skipped_if_the_value_does_not_match(text: str, holds: Truth) -> None:
    """Otherwise skipping would do nothing, and the test above would not notice."""
    predicate = parse_where(text, SCHEMA)
    (name,) = set(predicate.columns()) or {"i"}
    for value in [
        one for one in COLUMNS[name][1] if one is None or one == one
    ]:  # no bounds tell of NaN alone
        batch = pa.RecordBatch.from_pylist([{name: value}], schema=SCHEMA)
        row = batch.to_pylist()[0]
        assert predicate.may_match(ranges_of(batch)) == (holds(row) is True), row


def test_timestamps_without_a_zone_are_in_utc() -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("ntz", pa.timestamp("us"))])
    moment = datetime(2026, 11, 29, 10, 0, 0, 5, tzinfo=timezone.utc)
    batch = pa.RecordBatch.from_pylist([{"ts": moment, "ntz": moment.replace(tzinfo=None)}], schema=schema)
    for text in (
        "ts = '2026-11-29T10:00:00.000005Z'",
        "ts = '2026-11-29 12:00:00.000005+02:00'",
        "ts = '2026-11-29 10:00:00.000005'",
        "ntz = '2026-11-29 10:00:00.000005'",
        "ntz > '2026-11-29'",
    ):
        assert parse_where(text, schema).mask(batch).to_pylist() == [True], text


def test_floats_are_compared_with_all_digits_of_the_number() -> None:
    """Spark widens the column: 0.1 as a float is another number."""
    schema = pa.schema([("f", pa.float32())])
    batch = pa.RecordBatch.from_pylist([{"f": 0.1}, {"f": 0.5}], schema=schema)
    assert parse_where("f = 0.1", schema).mask(batch).to_pylist() == [False, False]
    assert parse_where("f = 0.5", schema).mask(batch).to_pylist() == [False, True]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("i >", "Expected"),
        ("nothing = 1", "there is no column nothing"),
        ("i = 'one'", "not comparable with 'one'"),
        ("s = 1", "not comparable with 1"),
        ("day = '2026-13-01'", "month must be in 1..12"),
        ("s LIKE '%a'", "wildcard"),
        ("s LIKE 'a_%'", "LIKE knows only % at the end"),
        ("s IS NAN", "has no NaN"),
        ("l = 1", "cannot be compared"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, problem: str) -> None:
    schema = SCHEMA.append(pa.field("l", pa.list_(pa.int32())))
    with pytest.raises(ConfigurationError, match=problem) as refused:
        parse_where(text, schema)
    assert "where=" in str(refused.value)
    assert "Nothing was read." in str(refused.value)
