"""Types of attributes, and the size of items by DynamoDB's rules."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.writers.aws.dynamodb_items import items_of, key_of, size_of

AT = datetime(2026, 1, 2, 3, 4, 5, 6)  # noqa: DTZ001


NULL, STRUCT = {"NULL": True}, pa.struct({"a": pa.decimal128(3, 2), "b": pa.bool_()})


@pytest.mark.parametrize(
    ("data_type", "value", "attribute"),
    [
        (pa.bool_(), True, {"BOOL": True}),
        (pa.int8(), -1, {"N": "-1"}),
        (pa.int64(), 2**63 - 1, {"N": "9223372036854775807"}),
        (pa.float64(), 0.1, {"N": "0.1"}),
        (pa.float64(), -1e125, {"N": "-1e+125"}),
        (pa.decimal128(38, 38), Decimal("1e-38"), {"N": "0." + "0" * 37 + "1"}),
        (pa.decimal128(38, 0), Decimal("9" * 38), {"N": "9" * 38}),
        (pa.string(), "é", {"S": "é"}),
        (pa.string(), "", {"S": ""}),
        (pa.binary(), b"\xff", {"B": b"\xff"}),
        (pa.date32(), date(1, 1, 1), {"S": "0001-01-01"}),
        (pa.timestamp("us", "UTC"), AT.replace(tzinfo=timezone.utc), {"S": "2026-01-02T03:04:05.000006Z"}),
        (pa.timestamp("us"), AT, {"S": "2026-01-02T03:04:05.000006"}),
        (pa.list_(pa.int64()), [1, None], {"L": [{"N": "1"}, NULL]}),
        (STRUCT, {"a": Decimal("0.50"), "b": None}, {"M": {"a": {"N": "0.50"}, "b": NULL}}),
        (pa.map_(pa.string(), pa.float32()), [("k", 0.5)], {"M": {"k": {"N": "0.5"}}}),
    ],
)
def test_a_value_has_an_attribute(data_type: pa.DataType, value: Any, attribute: dict[str, Any]) -> None:
    rows = pa.record_batch({"id": pa.array([1, 2]), "x": pa.array([value, None], data_type)})
    assert items_of(rows, ["id"]) == [{"id": {"N": "1"}, "x": attribute}, {"id": {"N": "2"}}]


@pytest.mark.parametrize(
    ("item", "size_bytes"),
    [
        ({"é": {"S": "é"}}, 4),
        ({"a": {"B": b"123"}}, 4),
        ({"a": {"BOOL": True}, "b": {"NULL": True}}, 4),
        ({"a": {"L": [{"S": "x"}, {"S": "yz"}]}}, 1 + 3 + 2 + 3),
        ({"a": {"M": {"k": {"S": "x"}}}}, 1 + 3 + 3),
        ({"a": {"N": "1" * 38}}, 22),
    ],
)
def test_the_size_of_an_item_is_that_of_the_documentation(item: dict[str, Any], size_bytes: int) -> None:
    assert size_of(item) == size_bytes


def test_keys_are_compared_by_value() -> None:
    assert key_of({"a": {"N": "1.50"}, "b": {"S": "x"}}, "ab") == key_of(
        {"a": {"N": "1.5"}, "b": {"S": "x"}}, "ab"
    )
    assert key_of({"a": {"N": "1"}}, "a") != key_of({"a": {"S": "1"}}, "a")
