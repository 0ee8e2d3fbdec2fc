"""Every supported Spark type through a real stream, read back by duckdb. Spark 4.0 hands over rows."""

from __future__ import annotations

import shutil
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from tests.support.id_stream import IdStream

pytestmark = pytest.mark.spark

UTC = timezone.utc
FIXTURES = Path(__file__).parents[1] / "fixtures" / "delta"
VALUES = {
    "cast(id AS BYTE)": 7,
    "cast(-32768 AS SHORT)": -32768,
    "cast(2147483647 AS INT)": 2147483647,
    "9223372036854775807": 9223372036854775807,
    "cast(0.1 AS FLOAT)": 0.10000000149011612,
    "cast('-Infinity' AS DOUBLE)": float("-inf"),
    "cast('12345678901234567890123456789.123456789' AS DECIMAL(38, 9))": Decimal(
        "12345678901234567890123456789.123456789"
    ),
    "concat('a\\'\u00e9', '\U0001f600')": "a'\u00e9\U0001f600",
    "X'00ff'": b"\x00\xff",
    "id = 7": True,
    "date'0001-01-01'": date(1, 1, 1),
    "timestamp'2024-11-03 05:30:00.123456Z'": datetime(2024, 11, 3, 5, 30, 0, 123456, UTC),
    "timestamp'2024-11-03 06:30:00.123456Z'": datetime(2024, 11, 3, 6, 30, 0, 123456, UTC),
    "timestamp_ntz'2024-03-10 02:30:00.000001'": datetime(2024, 3, 10, 2, 30, 0, 1),  # noqa: DTZ001
    "array(1, null, 3)": [1, None, 3],
    "map('k', named_struct('x', cast(null AS INT)))": {"k": {"x": None}},
    "named_struct('a', 1, 'b', array(named_struct('c', 'x'), null))": {"a": 1, "b": [{"c": "x"}, None]},
    "map('k', cast(null AS STRUCT<a: INT>))": {"k": None},
    "cast(null AS ARRAY<STRUCT<a: INT>>)": None,
    "cast(null AS MAP<STRING, STRUCT<a: INT>>)": None,
    "cast(null AS STRUCT<a: INT>)": None,
}


def test_values_arrive_as_they_are(ids: IdStream, session_zone: str) -> None:
    ids.add_files(1)
    columns = [f"{expression} AS c{number}" for number, expression in enumerate(VALUES)]
    ids.run(ids.rows().where("id = 7").selectExpr("id", *columns))

    names = ", ".join(f"c{number}" for number in range(len(VALUES)))
    ((*values,),) = ids.read(names)
    assert dict(zip(VALUES, [_utc(value) for value in values], strict=True)) == VALUES


def _utc(value: object) -> object:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("make_dt_interval(1)", "interval"),
        ("make_ym_interval(1)", "interval"),
        ("null", "cast"),
        ("named_struct('a', 1, 'b', array(make_dt_interval(1)))", "c.b"),
    ],
)
def test_types_that_would_change_are_refused_by_name(
    delta_ids: IdStream, expression: str, remedy: str
) -> None:
    delta_ids.add_files(1)
    message = delta_ids.fails_with(delta_ids.rows().selectExpr("id", f"{expression} AS c"))

    assert "SchemaMismatchError" in message
    assert remedy.lower() in message.lower()
    assert not delta_ids.table.folder.exists()


def test_a_variant_arrives_in_a_delta_table_that_has_one(delta_ids: IdStream) -> None:
    """Others refuse it by name, with `to_json` as the remedy."""
    shutil.copytree(FIXTURES / "variant", delta_ids.table.folder)
    delta_ids.add_files(1)
    column = "parse_json(concat('{\"b\": [', id, ']}')) AS v"
    delta_ids.run(delta_ids.rows().where("id < 2").selectExpr("id + 7 AS id", column))
    assert sorted(delta_ids.read("id, v")) == [(1, {"a": 1}), (7, {"b": [0]}), (8, {"b": [1]})]
