"""Rows as JSON objects: nothing is lost, and what JSON cannot hold is refused."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import subprocess
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.committers.errors import SchemaMismatchError
from penstock.committers.requests.contract import RowPlace
from penstock.writers.requests.json_rows import check_json_schema, check_values, json_objects
from penstock.writers.requests.row_ids import check_id_column, row_ids

DOCUMENTS = Path(__file__).parents[3] / "docs" / "types.md"
AT = datetime.fromisoformat("2026-01-02T03:04:05.000006")
PLACE = RowPlace("q", 7, 3, 10, 110)

VALUES: list[tuple[pa.DataType, Any, str]] = [
    (pa.bool_(), True, "true"),
    (pa.int64(), 2**63 - 1, "9223372036854775807"),
    (pa.int8(), -128, "-128"),
    (pa.float64(), 0.1, "0.1"),
    (pa.float64(), float("nan"), '"NaN"'),
    (pa.float64(), float("-inf"), '"-Infinity"'),
    (pa.float32(), float("inf"), '"Infinity"'),
    (pa.float32(), 19.99, "19.99"),
    (pa.list_(pa.float32()), [19.99, -0.0, 1e-45, float("nan")], '[19.99,-0.0,1.4013e-45,"NaN"]'),
    (pa.decimal128(38, 2), Decimal("-0.10"), '"-0.10"'),
    (pa.decimal128(38, 0), Decimal(10**37), f'"{10**37}"'),
    (pa.string(), "é", '"é"'),
    (pa.string(), '"\\\n\u2028', '"\\"\\\\\\n\u2028"'),
    (pa.binary(), b"\x00\xff", '"AP8="'),
    (pa.date32(), date(1, 1, 1), '"0001-01-01"'),
    (pa.timestamp("us", "UTC"), AT.replace(tzinfo=timezone.utc), '"2026-01-02T03:04:05.000006Z"'),
    (pa.timestamp("us"), AT, '"2026-01-02T03:04:05.000006"'),
    (pa.timestamp("us", "UTC"), datetime(9, 1, 2, tzinfo=timezone.utc), '"0009-01-02T00:00:00.000000Z"'),
    (pa.list_(pa.int64()), [1, None], "[1,null]"),
    (pa.list_(pa.binary()), [b"\x00\xff"], '["AP8="]'),
    (pa.struct({"a": pa.decimal128(3, 2)}), {"a": Decimal("0.50")}, '{"a":"0.50"}'),
    (pa.map_(pa.string(), pa.float64()), [("k", None)], '{"k":null}'),
    (pa.list_(pa.struct({"t": pa.timestamp("us")})), [{"t": AT}], '[{"t":"2026-01-02T03:04:05.000006"}]'),
]


def batch(data_type: pa.DataType, *values: Any) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, data_type)], names=["v"])


@pytest.mark.parametrize(("data_type", "value", "text"), VALUES, ids=[str(one[0]) for one in VALUES])
def test_every_value_and_null_are_json(data_type: pa.DataType, value: Any, text: str) -> None:
    rows = batch(data_type, value, None)
    check_json_schema(rows.schema, "x")
    check_values(rows)
    assert [row.decode() for row in json_objects(rows)] == [f'{{"v":{text}}}', '{"v":null}']


def test_times_with_another_zone_are_written_in_utc() -> None:
    rows = batch(pa.timestamp("us", "America/New_York"), AT.replace(tzinfo=timezone.utc))
    assert json_objects(rows) == [b'{"v":"2026-01-02T03:04:05.000006Z"}']


def test_numbers_of_32_bits_have_the_fewest_digits_that_stand_for_them() -> None:
    """At the top level and inside, of all sizes."""
    bits = [31**number % 2**32 for number in range(4000)]
    numbers = struct.unpack(f"{len(bits)}f", struct.pack(f"{len(bits)}I", *bits))
    values = [one for one in numbers if math.isfinite(one)]
    assert len(values) > 3900
    arrays = [pa.array(values, pa.float32()), pa.array([[one] for one in values], pa.list_(pa.float32()))]
    for value, text in zip(values, json_objects(pa.record_batch(arrays, names=["v", "l"])), strict=True):
        row = json.loads(text)
        for written in (row["v"], *row["l"]):
            assert struct.pack("f", written) == struct.pack("f", value)
            assert len(Decimal(repr(written)).normalize().as_tuple().digits) <= 9


def test_the_time_zone_database_is_not_needed() -> None:
    """Small containers do not have it. Then every row with a timestamp would be a bad row."""
    program = """
import sys
sys.modules.update(dict.fromkeys(("pytz", "tzdata", "zoneinfo")))
import pyarrow as pa
from penstock.writers.aws.dynamodb_items import items_of
from penstock.writers.requests.json_rows import json_objects
from penstock.writers.requests.keyed import row_keys
at = pa.timestamp("us", "UTC")
nested = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())).cast(pa.map_(pa.string(), at))
rows = pa.record_batch({"t": pa.array([0], at), "m": nested})
print(json_objects(rows), items_of(rows, ["t"]), row_keys(rows, ["t"]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONTZPATH": ""},
    )
    assert ended.returncode == 0, ended.stderr
    assert '{"t":"1970-01-01T00:00:00.000000Z","m":{"k":"1970-01-01T00:00:00.000001Z"}}' in ended.stdout


def test_the_documents_show_these_values() -> None:
    page = DOCUMENTS.read_text().partition("## Rows as JSON")[2].partition("\n## ")[0]
    shown = [
        text for row in re.findall(r"\| ([^|]*) \|\n", page)[1:] for text in re.findall(r"`([^`]+)`", row)
    ]
    assert len(shown) == 14
    assert [text for text in shown if text not in {one[2] for one in VALUES}] == []


def test_a_row_has_its_columns_by_name_and_no_line_break() -> None:
    rows = pa.record_batch({'a "b"': ["x\ny", None], "c": [1, 2]})
    objects = json_objects(rows)
    assert [json.loads(row) for row in objects] == [{'a "b"': "x\ny", "c": 1}, {'a "b"': None, "c": 2}]
    assert not [row for row in objects if b"\n" in row]


def test_a_slice_of_rows_is_converted_alone() -> None:
    rows = pa.record_batch({"a": ["x", "y", "z"], "b": [[1], [2], [3]]}).slice(1, 1)
    assert json_objects(rows) == [b'{"a":"y","b":[2]}']


@pytest.mark.parametrize(
    ("data_type", "path"),
    [
        (pa.map_(pa.int64(), pa.int64()), "v is a map"),
        (pa.struct({"m": pa.map_(pa.date32(), pa.int64())}), "v.m is a map"),
        (pa.duration("us"), "v is duration"),
        (pa.list_(pa.duration("us")), "v.element is duration"),
        (pa.map_(pa.string(), pa.duration("us")), "v.value is duration"),
    ],
)
def test_a_type_that_json_does_not_have_is_refused_at_start(data_type: pa.DataType, path: str) -> None:
    with pytest.raises(SchemaMismatchError, match=path):
        check_json_schema(pa.schema({"v": data_type}), "x")


@pytest.mark.parametrize(
    "rows",
    [
        pa.record_batch([pa.array([b"\xff"], pa.binary()).view(pa.string())], names=["v"]),
        batch(pa.date32(), 3_000_000),
        pa.record_batch([pa.array([2**61], pa.int64()).cast(pa.timestamp("us"))], names=["v"]),
        pa.record_batch(
            [pa.array([[-3_000_000]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))], names=["v"]
        ),
    ],
    ids=["no UTF-8", "date", "timestamp", "nested date"],
)
def test_a_value_that_json_cannot_hold_is_refused_with_its_column(rows: pa.RecordBatch) -> None:
    """Before it is written to a row log, too."""
    for step in (check_values, json_objects):
        with pytest.raises(SchemaMismatchError, match=r"in v"):
            step(rows)


# Ids ------------------------------------------------------------------------------------------------


def test_derived_ids_are_the_place_of_the_row() -> None:
    """Not that in the delivery, which depends on the other batches in it."""
    assert row_ids(batch(pa.int64(), 1, 2), PLACE, None) == ["q-7-3-10", "q-7-3-11"]


@pytest.mark.parametrize(
    ("data_type", "value", "row_id"),
    [
        (pa.string(), "a-é", "a-é"),
        (pa.int64(), 5, "5"),
        (pa.decimal128(5, 2), Decimal("1.50"), "1.50"),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.date32(), date(2026, 1, 2), "2026-01-02"),
    ],
)
def test_ids_come_from_a_column(data_type: pa.DataType, value: Any, row_id: str) -> None:
    rows = batch(data_type, value)
    check_id_column(rows.schema, "v")
    assert row_ids(rows, PLACE, "v") == [row_id]


@pytest.mark.parametrize("data_type", [pa.float64(), pa.list_(pa.int64()), pa.struct({"a": pa.int64()})])
def test_values_that_are_no_ids_are_refused_at_start(data_type: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match="cast it to STRING"):
        check_id_column(pa.schema({"v": data_type}), "v")
    with pytest.raises(SchemaMismatchError, match="the query does not have: v"):
        check_id_column(pa.schema({"v": pa.int64()}), "w")


def test_an_id_is_never_null() -> None:
    with pytest.raises(SchemaMismatchError, match="NULL"):
        row_ids(batch(pa.int64(), 1, None), PLACE, "v")
