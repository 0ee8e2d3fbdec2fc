"""Writers get timestamps in UTC, in whatever time zone Spark passes them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import StructType

from penstock.committers.errors import SchemaMismatchError
from penstock.datasource.spark.row_stream_writer import RowStreamWriter
from penstock.datasource.spark.utc import in_utc
from penstock.writers.requests.python_values import python_values

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


def test_a_null_struct_has_null_in_a_field_that_is_not_null() -> None:
    """Spark writes these."""

    def struct_of(time: pa.DataType) -> pa.StructArray:
        instants = pa.array([None, 5], time)
        field = pa.field("at", time, nullable=False)
        return pa.StructArray.from_arrays([instants], fields=[field], mask=pa.array([True, False]))

    (found,) = in_utc([pa.record_batch([struct_of(NEW_YORK)], names=["v"])])
    assert found.column(0).equals(struct_of(UTC))
    null, second = python_values(found.column(0))
    assert null is None
    assert second["at"].microsecond == 5


def test_local_times_and_other_columns_are_not_touched() -> None:
    rows = pa.record_batch([pa.array([0], pa.timestamp("us")), pa.array(["a"])], names=["t", "s"])
    (found,) = in_utc([rows])
    assert found is rows


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of this process."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def written_as_rows(instants: Iterable[datetime], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a writer gets of instants on Spark 4.0, which converts each row when it is asked for it."""
    monkeypatch.setattr(
        RowStreamWriter, "write_batches", lambda _self, batches: pa.Table.from_batches(batches)
    )
    rows = (Row(t=instant.astimezone().replace(tzinfo=None)) for instant in instants)
    writer = RowStreamWriter(None, None, StructType().add("t", "timestamp"))  # type: ignore[arg-type]
    written: pa.Table = writer.write(rows)
    return list(written.column("t").to_pylist())


def test_rows_of_two_hours_with_the_same_local_time_stay_apart(
    new_york: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    instants = [datetime(2024, 11, 3, hour, 30, tzinfo=timezone.utc) for hour in (5, 6)]
    assert written_as_rows(instants, monkeypatch) == instants
    assert time.localtime(instants[0].timestamp()).tm_isdst == 1


def test_a_row_that_python_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def instants() -> Iterator[datetime]:
        yield datetime(2024, 1, 1, tzinfo=timezone.utc)
        raise OverflowError("date value out of range")  # by pyarrow, in Spark's code

    with pytest.raises(SchemaMismatchError, match="outside of the years 1 to 9999"):
        written_as_rows(instants(), monkeypatch)
