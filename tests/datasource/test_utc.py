"""Writers get timestamps in UTC, in whatever time zone Spark passes them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.datasource.utc import in_utc

NEW_YORK, UTC = pa.timestamp("us", "America/New_York"), pa.timestamp("us", "UTC")


def types_with(time: pa.DataType) -> list[pa.DataType]:
    return [
        time,
        pa.list_(pa.field("element", time, nullable=False)),
        pa.map_(time, pa.list_(time)),
        pa.struct([pa.field("a", time, nullable=False), pa.field("b", pa.list_(pa.struct([("c", time)])))]),
    ]


VALUES: list[list[Any]] = [
    [0, None, 5],
    [[0], None, []],
    [[(1, [2, None])], [], None],
    [{"a": 1, "b": [{"c": 3}, None]}, None, {"a": 2, "b": None}],
]


@pytest.mark.parametrize("first", [0, 1, 3], ids=["all", "slice", "none"])
@pytest.mark.parametrize(
    ("given", "wanted", "values"),
    list(zip(types_with(NEW_YORK), types_with(UTC), VALUES, strict=True)),
    ids=["column", "list", "map", "struct"],
)
def test_instants_stay_and_the_zone_is_utc(
    given: pa.DataType, wanted: pa.DataType, values: list[Any], first: int
) -> None:
    metadata = {"key": "value"}
    field = pa.field("v", given, metadata=metadata)
    (found,) = in_utc([pa.record_batch([pa.array(values, given)], schema=pa.schema([field])).slice(first)])

    found.validate(full=True)
    assert found.schema.equals(pa.schema([field.with_type(wanted)]), check_metadata=True)
    assert found.column(0).equals(pa.array(values, wanted)[first:])


def test_an_empty_list_without_offsets_is_passed() -> None:
    """Spark 4.0 sends these."""
    inner = pa.Array.from_buffers(pa.list_(NEW_YORK), 0, [None, None], children=[pa.array([], NEW_YORK)])
    rows = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), inner)
    (found,) = in_utc([pa.record_batch([rows], names=["v"])])
    assert found.schema.field("v").type.value_type.value_type == UTC
    assert found.column(0).to_pylist() == [[]]


def test_local_times_and_other_columns_are_not_touched() -> None:
    rows = pa.record_batch([pa.array([0], pa.timestamp("us")), pa.array(["a"])], names=["t", "s"])
    (found,) = in_utc([rows])
    assert found is rows
