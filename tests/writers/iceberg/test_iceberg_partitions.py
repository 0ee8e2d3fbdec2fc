"""Iceberg's partitions: transforms as the specification has them, values as text, directories."""

from __future__ import annotations

import math
import uuid
from datetime import date, datetime, time, timezone
from decimal import Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.table.locations import ObjectStoreLocationProvider
from pyiceberg.transforms import parse_transform
from tests.support.iceberg_kinds import KINDS, WIDE, Kind, to_iceberg

from penstock.committers.contract import PartitionField
from penstock.writers.iceberg.partitions import directory, format_value, hash_directories, split
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.parquet.columns import reach
from penstock.writers.parquet.transforms import apply_transform

UUID = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
HASH = "bucket[2147483647]"
"""Bucket numbers are the hashes themselves, the sign left out."""


def stored(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if kind == pa.uuid():
        values = [None if value is None else value.bytes for value in values]
        return pa.array(values, pa.binary(16))
    return pa.array(values, kind)


@pytest.mark.parametrize(
    ("value", "kind", "hashed"),
    [
        (34, pa.int32(), 2017239379),
        (34, pa.int64(), 2017239379),
        (Decimal("14.20"), pa.decimal128(9, 2), -500754589),
        (Decimal("14.20"), pa.decimal128(38, 2), -500754589),
        (date(2017, 11, 16), pa.date32(), -653330422),
        (time(22, 31, 8), pa.time64("us"), -662762989),
        (datetime(2017, 11, 16, 22, 31, 8), pa.timestamp("us"), -2047944441),  # noqa: DTZ001
        (datetime(2017, 11, 16, 22, 31, 8, tzinfo=timezone.utc), pa.timestamp("us", "UTC"), -2047944441),
        ("iceberg", pa.string(), 1210000089),
        (UUID, pa.uuid(), 1488055340),
        (b"\x00\x01\x02\x03", pa.binary(4), -188683207),
        (b"\x00\x01\x02\x03", pa.binary(), -188683207),
    ],
    ids=str,
)
def test_hashes_are_those_of_the_specification(value: Any, kind: pa.DataType, hashed: int) -> None:
    """The table of "Appendix B: 32-bit Hash Requirements"."""
    assert apply_transform(HASH, stored(kind, [value])).to_pylist() == [hashed & 0x7FFFFFFF]


@pytest.mark.parametrize(
    ("transform", "value", "kind", "expected"),
    [
        ("truncate[10]", 1, pa.int32(), 0),
        ("truncate[10]", -1, pa.int32(), -10),
        ("truncate[10]", -1, pa.int64(), -10),
        ("truncate[50]", Decimal("10.65"), pa.decimal128(9, 2), Decimal("10.50")),
        ("truncate[50]", Decimal("-0.05"), pa.decimal128(38, 2), Decimal("-0.50")),
        ("truncate[3]", "iceberg", pa.string(), "ice"),
        ("truncate[2]", "\U0001f600é€", pa.string(), "\U0001f600é"),
        ("truncate[3]", b"\x01\x02\x03\x04\x05", pa.binary(), b"\x01\x02\x03"),
        ("year", date(1969, 12, 31), pa.date32(), -1),
        ("month", date(1969, 11, 30), pa.date32(), -2),
        ("day", datetime(1969, 12, 31, 23, 59, 59, 999999), pa.timestamp("us"), date(1969, 12, 31)),  # noqa: DTZ001
        ("day", datetime(1969, 1, 1, 23, 59, 59, 1), pa.timestamp("us"), date(1969, 1, 1)),  # noqa: DTZ001
        ("month", datetime(1969, 1, 31, 23, 59, 59, 1), pa.timestamp("us"), -12),  # noqa: DTZ001
        ("year", datetime(1968, 12, 31, 23, 59, 59, 1), pa.timestamp("us"), -2),  # noqa: DTZ001
        ("hour", datetime(1969, 12, 31, 22, 59, 59, 1), pa.timestamp("us"), -2),  # noqa: DTZ001
        ("hour", datetime(1969, 12, 31, 22, 59), pa.timestamp("us"), -2),  # noqa: DTZ001
        ("void", 1, pa.int64(), None),
    ],
    ids=str,
)
def test_transforms_are_those_of_the_specification(
    transform: str, value: Any, kind: pa.DataType, expected: Any
) -> None:
    assert apply_transform(transform, stored(kind, [value])).to_pylist() == [expected]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_transforms_are_those_of_pyiceberg(kind: Kind) -> None:
    """In text too, and for any part of a batch."""

    @settings(max_examples=60, deadline=None)
    @given(st.lists(kind.values | st.none(), min_size=1, max_size=6), st.integers(0, 3))
    def check(values: list[Any], start: int) -> None:
        for transform in kind.transforms:
            theirs = parse_transform(transform).transform(kind.iceberg)
            ours = apply_transform(transform, stored(kind.arrow, values).slice(start))
            texts = [format_value(ours.slice(i, 1)) for i in range(len(ours))]
            with localcontext(WIDE):
                expected = [None if value is None else theirs(to_iceberg(value)) for value in values[start:]]
            assert texts == [as_text(value) for value in expected], transform

    check()


def as_text(value: Any) -> str | None:
    """Return a partition value as text, as in a data file."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.hex()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


@pytest.mark.parametrize(
    ("transform", "kind", "part_of_message"),
    [
        ("hour", pa.date32(), "hour"),
        ("year", pa.time64("us"), "Year"),
        ("day", pa.int64(), "Int64"),
        ("truncate[4]", pa.float64(), "Float64"),
        ("truncate[4]", pa.date32(), "Date32"),
        ("bucket[4]", pa.bool_(), "Boolean"),
        ("bucket[4]", pa.float32(), "Float32"),
        *[(transform, pa.int64(), "no transform") for transform in ("bucket[0]", "bucket", "zorder[2]")],
        ("day[1]", pa.date32(), "no transform"),
        ("identity", pa.struct([("x", pa.int64())]), "one of its fields"),
        ("identity", pa.list_(pa.int64()), "one of its fields"),
    ],
)
def test_transforms_that_iceberg_does_not_allow_are_refused(
    transform: str, kind: pa.DataType, part_of_message: str
) -> None:
    schema = pa.schema([pa.field("v", kind, metadata={"PARQUET:field_id": "1"})])
    problems = " ".join(IcebergFormat((PartitionField("p", ("v",), transform),)).problems(schema))
    assert "'p'" in problems
    assert part_of_message in problems


def test_a_missing_column_is_refused_unless_its_field_is_void() -> None:
    """A partition field of a dropped column is void."""
    schema = pa.schema([pa.field("v", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    lost = PartitionField("p", ("s", "dropped"), "bucket[4]")
    (problem,) = IcebergFormat((lost,)).problems(schema)
    assert "'s.dropped'" in problem
    assert IcebergFormat((PartitionField("p", ("dropped",), "void"),)).problems(schema) == []


# Splitting ------------------------------------------------------------------------------------------

FIELDS = [
    PartitionField("i", ("i",), "truncate[10]"),
    PartitionField("dropped", ("t",), "void"),
    PartitionField("t", ("s", "t"), "identity"),
    PartitionField("f", ("f",), "identity"),
]
SCHEMA = pa.schema(
    [("id", pa.int64()), ("i", pa.int32()), ("s", pa.struct([("t", pa.string())])), ("f", pa.float64())]
)
FLOATS = st.sampled_from([None, 0.0, -0.0, math.nan, -math.nan, 1.5])
KEYS = st.tuples(st.integers(-20, 20) | st.none(), st.sampled_from([None, "", "a", "b"]), FLOATS)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(KEYS, min_size=1, max_size=60))
def test_splitting_keeps_every_row_once_in_order_under_its_key(keys: list[tuple[Any, ...]]) -> None:
    rows = [
        {"id": i, "i": number, "s": {"t": text}, "f": real} for i, (number, text, real) in enumerate(keys)
    ]
    table = pa.Table.from_pylist(rows, SCHEMA)
    expected: dict[tuple[str | None, ...], list[int]] = {}
    for row, (number, text, real) in enumerate(keys):
        tens = None if number is None else str(number // 10 * 10)
        expected.setdefault((tens, None, text, None if real is None else repr(real)), []).append(row)
    parts = list(split(pa.concat_tables([table[:3], table[3:]]), FIELDS, "here"))
    got = {tuple(value for _, value in part.values): part.rows["id"].to_pylist() for part in parts}
    assert [name for name, _ in parts[0].values] == ["i", "dropped", "t", "f"]
    assert len(got) == len(parts)
    assert got == expected
    assert all(part.rows.schema == SCHEMA for part in parts)


def test_fields_of_a_null_struct_are_null() -> None:
    inner = pa.StructArray.from_arrays([pa.array([1, 2])], ["x"], mask=pa.array([False, True]))
    assert reach(pa.StructArray.from_arrays([inner], ["s"]), ["s", "x"]).to_pylist() == [1, None]


def test_only_void_fields_make_one_partition() -> None:
    (part,) = split(pa.table({"id": [1, 2]}), [PartitionField("p", ("dropped",), "void")], "here")
    assert (part.values, part.rows.num_rows) == ((("p", None),), 2)


# Paths ----------------------------------------------------------------------------------------------


def test_directories_are_readable_and_need_no_escapes() -> None:
    values = (("a b", "x/y=%ü"), ("n", None), ("dots", ".."))
    partitioning = [PartitionField(name, ("v",), "identity") for name, _ in values]
    assert directory(values, partitioning) == "a_b=x_y___/n=null/dots=.."
    assert directory((), ()) == ""


@pytest.mark.parametrize(
    ("transform", "value", "shown"),
    [
        ("year", "54", "2024"),
        ("month", "648", "2024-01"),
        ("month", "-1", "1969-12"),
        ("day", "19737", "2024-01-15"),
        ("hour", "473710", "2024-01-15-22"),
        ("hour", "-1", "1969-12-31-23"),
        ("day", "99999999", "99999999"),
        ("bucket[4]", "3", "3"),
    ],
)
def test_directories_show_times_as_dates(transform: str, value: str, shown: str) -> None:
    assert directory((("p", value),), [PartitionField("p", ("ts",), transform)]) == f"p={shown}"


@given(st.text(max_size=300), st.text(max_size=300) | st.none())
def test_a_directory_is_a_name_that_every_file_system_takes(name: str, value: str | None) -> None:
    made = directory(((name, value),), [PartitionField(name, ("v",), "identity")])
    assert made.isascii()
    assert len(made) <= 100
    assert "/" not in made
    assert made not in ("", ".", "..")


@given(st.text())
def test_hashes_in_paths_are_icebergs_own(path: str) -> None:
    assert hash_directories(path) == ObjectStoreLocationProvider._compute_hash(path)


def test_hashes_come_before_the_partition() -> None:
    table_format = IcebergFormat((PartitionField("p", ("v",), "identity"),), is_object_storage_layout=True)
    path = table_format.data_path((("p", "1"),), "name.parquet")
    assert path == f"{hash_directories('p=1/name.parquet')}/p=1/name.parquet"
    assert (
        IcebergFormat(is_object_storage_layout=True).data_path((), "name.parquet").endswith("/name.parquet")
    )


def test_a_table_may_ask_for_hashes_alone() -> None:
    """`write.object-storage.partitioned-paths=false`."""
    partitioning = (PartitionField("p", ("v",), "identity"),)
    alone = IcebergFormat(partitioning, is_object_storage_layout=True, has_partition_paths=False)
    path = alone.data_path((("p", "1"),), "name.parquet")
    assert path == f"{hash_directories('name.parquet')}/name.parquet"
