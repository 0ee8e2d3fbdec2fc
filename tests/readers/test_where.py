"""Conditions are compared as Spark does, and say what is wrong with them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timezone

import pyarrow as pa
import pytest
from tests.support.conditions import COLUMNS, LEAVES, SCHEMA, Truth, condition, rows_of

from penstock import ConfigurationError
from penstock.readers.predicates import UNKNOWN, ValueRange
from penstock.readers.values import Path, comparable
from penstock.readers.where import parse_where


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
