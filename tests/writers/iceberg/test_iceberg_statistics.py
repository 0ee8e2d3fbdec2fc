"""Column metrics of Iceberg files: right by value, and as pyiceberg counts them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyiceberg import types as ice
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from tests.support.iceberg_kinds import KINDS, Kind, column, is_nan, to_iceberg
from tests.support.plans import with_ids
from tests.support.written_iceberg import schema_of
from tests.writers.task import NAMES, write_as_task

from penstock.committers.errors import ConfigurationError
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.lake.table_format import LakeFormat, files_of_iceberg
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.write_config import WriteConfig

Write: TypeAlias = Callable[..., tuple[dict[str, Any], pq.FileMetaData]]


@pytest.fixture
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """`write(rows, schema, metrics={}, **plan)`: the statistics and the footer of the only file."""

    def write_one(
        rows: pa.Table, schema: Schema, metrics: dict[int, str] | None = None, **options: Any
    ) -> tuple[dict[str, Any], pq.FileMetaData]:
        location = tmp_path_factory.mktemp("data")
        arrow = schema_to_pyarrow(schema, include_field_ids=True)
        plan = WriteConfig(str(location), {}, arrow, IcebergFormat((), metrics or {}), **options)
        unsynced = SubTreeFileSystem(str(location), LocalFileSystem())
        (file,) = write_as_task(plan, rows, filesystem=(unsynced, ""))
        return json.loads(file.statistics), pq.read_metadata(location / file.path)

    return write_one


def one(
    write: Write, kind: ice.IcebergType, values: pa.Array, mode: str = "truncate(16)", **options: Any
) -> Any:
    """(lower, upper) in hex; None where there is none."""
    statistics, _ = write(pa.table({"v": values}), schema_of(v=kind), {1: mode}, **options)
    return statistics["lower_bounds"].get("1"), statistics["upper_bounds"].get("1")


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("mode", ["truncate(2)", "full"])
def test_bounds_and_counts_hold_for_all_values(kind: Kind, mode: str, write: Write) -> None:
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(kind.values | st.none(), min_size=1, max_size=5))
    def check(values: list[Any]) -> None:
        rows = pa.table({"v": column(kind, values)})
        statistics, _ = write(rows, schema_of(v=kind.iceberg), {1: mode}, row_group_rows=2)
        plain = [to_iceberg(value) for value in values if value is not None and not is_nan(value)]
        nans = sum(map(is_nan, values))
        assert statistics["value_counts"] == {"1": len(values)}
        assert statistics["null_value_counts"] == {"1": values.count(None)}
        is_floating = isinstance(kind.iceberg, ice.FloatType | ice.DoubleType)
        has_only_nans = nans > 0 and not plain
        assert statistics["nan_value_counts"] == ({"1": nans} if is_floating and not has_only_nans else {})
        assert len(statistics["split_offsets"]) == math.ceil(len(values) / 2)
        bounds = [
            from_bytes(kind.iceberg, bytes.fromhex(statistics[name]["1"]))
            if "1" in statistics[name]
            else None
            for name in ("lower_bounds", "upper_bounds")
        ]
        check_bounds(kind.iceberg, plain, bounds, mode, has_nan=nans > 0)

    check()


def check_bounds(
    kind: ice.IcebergType, values: list[Any], bounds: list[Any], mode: str, *, has_nan: bool
) -> None:
    lower, upper = bounds
    if not values or isinstance(kind, ice.UUIDType):
        assert bounds == [None, None]
        return
    assert lower <= min(values)
    is_long = isinstance(kind, ice.StringType | ice.BinaryType)
    assert len(lower) <= 2 if is_long and mode != "full" else lower == min(values)
    if has_nan:
        assert upper is None
    elif upper is not None:
        assert upper >= max(values)
        assert len(upper) <= 2 if is_long and mode != "full" else upper == max(values)
    else:
        assert is_long
        assert mode != "full"


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["a" * 16], ice.StringType(), ("a" * 16, "a" * 16)),
        (["a" * 17], ice.StringType(), ("a" * 16, "a" * 15 + "b")),
        (["a" * 5000, "b"], ice.StringType(), ("a" * 16, "b")),
        (["\U0010ffff" * 17], ice.StringType(), ("\U0010ffff" * 16, None)),
        (["a" + "\U0010ffff" * 17], ice.StringType(), ("a" + "\U0010ffff" * 15, "b")),
        (["a" * 15 + "\ud7ffz"], ice.StringType(), ("a" * 15 + "\ud7ff", "a" * 15 + "\ue000")),
        (["\U0001f600" * 16], ice.StringType(), ("\U0001f600" * 16, "\U0001f600" * 16)),
        ([b"a" * 17], ice.BinaryType(), (b"a" * 16, b"a" * 15 + b"b")),
        ([b"\xff" * 17], ice.BinaryType(), (b"\xff" * 16, None)),
        ([b"a" + b"\xff" * 5000], ice.BinaryType(), (b"a" + b"\xff" * 15, b"b")),
        ([""], ice.StringType(), ("", "")),
    ],
)
def test_long_values_are_cut_and_rounded_up(
    values: list[Any], kind: ice.IcebergType, expected: tuple[Any, Any], write: Write
) -> None:
    as_hex = [value.encode().hex() if isinstance(value, str) else value and value.hex() for value in expected]
    assert one(write, kind, pa.array(values)) == tuple(as_hex)


@pytest.mark.parametrize(
    ("unscaled", "as_hex"), [(0, "00"), (127, "7f"), (128, "0080"), (-128, "80"), (-129, "ff7f"), (-1, "ff")]
)
@pytest.mark.parametrize("precision", [9, 18, 38])
def test_decimals_are_the_fewest_bytes(unscaled: int, as_hex: str, precision: int, write: Write) -> None:
    values = pa.array([Decimal(unscaled).scaleb(-2)], pa.decimal128(precision, 2))
    assert one(write, ice.DecimalType(precision, 2), values) == (as_hex, as_hex)


(SIGNALING_NAN,) = struct.unpack("<d", (0x7FF0_0000_0000_0001).to_bytes(8, "little"))


def doubles(lower: float, upper: float | None) -> tuple[str, str | None]:
    return struct.pack("<d", lower).hex(), None if upper is None else struct.pack("<d", upper).hex()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0], doubles(-0.0, 0.0)),
        ([-0.0], doubles(-0.0, 0.0)),
        ([1.0, math.nan], doubles(1.0, None)),
        ([math.nan], (None, None)),
        ([math.inf, -math.inf], doubles(-math.inf, math.inf)),
        ([math.nan, math.nan, 2.0, 3.0], doubles(2.0, None)),
        ([None], (None, None)),
        ([-1.0, -3.0], doubles(-3.0, -1.0)),
        ([-1.0, -math.nan, -3.0], doubles(-3.0, None)),
        ([0.0, SIGNALING_NAN], doubles(-0.0, None)),
    ],
)
def test_zeros_and_nan(values: list[Any], expected: Any, write: Write) -> None:
    """A row group of NaN only has no bounds, and takes none from the others."""
    assert one(write, ice.DoubleType(), pa.array(values, pa.float64()), row_group_rows=2) == expected


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ([math.nan], {}),
        ([math.nan, None], {}),
        ([math.nan, math.nan, 1.0], {"1": 2}),
        ([None], {"1": 0}),
        ([1.0], {"1": 0}),
    ],
)
@pytest.mark.parametrize("kind", [ice.DoubleType(), ice.FloatType()], ids=str)
def test_a_file_whose_values_are_all_nan_is_not_skipped(
    kind: ice.IcebergType, values: list[Any], counts: dict[str, int], write: Write
) -> None:
    """Iceberg's evaluator skips it for <, <=, > and >= by its NaN count. Spark orders NaN last."""
    data_type = pa.float64() if isinstance(kind, ice.DoubleType) else pa.float32()
    rows = pa.table({"v": pa.array(values, data_type)})
    statistics, _ = write(rows, schema_of(v=kind), row_group_rows=2)
    assert statistics["nan_value_counts"] == counts
    assert statistics["value_counts"] == {"1": len(values)}


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("none", ["column_sizes"]),
        ("counts", ["column_sizes", "value_counts", "null_value_counts", "nan_value_counts"]),
    ],
)
def test_modes_leave_out_what_is_not_wanted(mode: str, names: list[str], write: Write) -> None:
    statistics, _ = write(pa.table({"v": [1.0]}), schema_of(v=ice.DoubleType()), {1: mode})
    of_columns = [name for name, values in statistics.items() if name != "split_offsets" and values]
    assert of_columns == names


def test_a_full_bound_is_the_whole_value(write: Write) -> None:
    text = "a" * 9000
    assert one(write, ice.StringType(), pa.array([text]), "full") == (text.encode().hex(),) * 2


NESTED = pa.schema(
    [
        ("l", pa.list_(pa.struct([("x", pa.int64())]))),
        ("m", pa.map_(pa.string(), pa.float64())),
        ("s", pa.struct([("y", pa.struct([("z", pa.float64())]))])),
        ("v", pa.int64()),
    ]
)
"""With the field ids 3 (x), 5 and 6 (keys and values), 9 (z) and 10 (v)."""
NESTED_ROWS = [
    {"l": [{"x": 7}, None, {"x": None}], "m": [("a", 1.0), ("b", None)], "s": {"y": {"z": 2.5}}, "v": 1},
    {"l": [], "m": [], "s": {"y": None}, "v": 2},
    {"l": None, "m": None, "s": None, "v": None},
]


def test_nested_columns_are_counted_and_bound_only_outside_lists_and_maps(write: Write) -> None:
    statistics, _ = write(pa.Table.from_pylist(NESTED_ROWS, NESTED), pyarrow_to_schema(with_ids(NESTED)))
    assert statistics["value_counts"] == {"3": 5, "5": 4, "6": 4, "9": 3, "10": 3}
    in_list = 4 if int(pa.__version__.split(".")[0]) >= 26 else 2  # without those of NULL and empty lists
    assert statistics["null_value_counts"] == {"3": in_list, "5": 2, "9": 2, "10": 1}
    assert statistics["nan_value_counts"] == {"9": 0}
    assert statistics["lower_bounds"] == {"9": struct.pack("<d", 2.5).hex(), "10": "0100000000000000"}
    assert statistics["upper_bounds"] == {"9": struct.pack("<d", 2.5).hex(), "10": "0200000000000000"}


def test_statistics_are_those_of_pyiceberg_from_the_same_footer(write: Write) -> None:
    """But for bounds: it has them inside lists and maps, and none inside structs.

    And of floating columns it knows nothing: the footer has no statistics of them.
    """
    rows = pa.Table.from_pylist(NESTED_ROWS, NESTED)
    rows = rows.append_column("t", pa.array(["x" * 20, None, "y"]))
    rows = rows.append_column("d", pa.array([Decimal("-1.50"), None, Decimal("300")], pa.decimal128(18, 2)))
    rows = rows.append_column("b", pa.array([b"\xff" * 20, None, b"\x00"]))
    schema = pyarrow_to_schema(with_ids(rows.schema))
    ours, footer = write(rows, schema, row_group_rows=2)
    theirs = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
    ).to_serialized_dict()
    assert ours["null_value_counts"].pop("9") == 2
    for name in ("column_sizes", "value_counts", "null_value_counts"):
        assert ours[name] == {str(field_id): count for field_id, count in theirs[name].items()}
    assert ours["split_offsets"] == theirs["split_offsets"]
    for name in ("lower_bounds", "upper_bounds"):
        bounds = {str(field_id): bound.hex() for field_id, bound in theirs[name].items()}
        of_top_level = {
            field_id: bounds[field_id] for field_id in ("10", "11", "12", "13") if field_id in bounds
        }
        ours[name].pop("9")
        assert ours[name] == of_top_level


def test_split_offsets_are_where_row_groups_begin(write: Write) -> None:
    statistics, footer = write(pa.table({"v": range(10)}), schema_of(v=ice.LongType()), row_group_rows=3)
    starts = [footer.row_group(i).column(0) for i in range(footer.num_row_groups)]
    assert len(starts) == 4
    assert statistics["split_offsets"] == [
        min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        for chunk in starts
    ]
    assert statistics["split_offsets"][0] == 4
    assert statistics["split_offsets"] == sorted(set(statistics["split_offsets"]))


@pytest.mark.parametrize("mode", ["truncate(0)", "truncate", "all", "truncate(-1)"])
def test_unknown_modes_are_refused(mode: str) -> None:
    arrow = schema_to_pyarrow(schema_of(v=ice.LongType()), include_field_ids=True)
    with pytest.raises(ConfigurationError, match="metrics mode"):
        WriteConfig("/t", {}, arrow, IcebergFormat((), {1: mode}))


def test_columns_without_a_field_id_are_refused(tmp_path: Path) -> None:
    """Readers would not find them."""
    inner = pa.list_(pa.field("element", pa.int64()))
    schema = pa.schema([pa.field("l", inner, metadata={"PARQUET:field_id": "1"})])
    with pytest.raises(ConfigurationError, match=r"'l.element' has no Iceberg field id"):
        WriteConfig(str(tmp_path), {}, schema, IcebergFormat())


def test_files_of_a_pair_and_rewritten_files_have_the_same_counts(tmp_path: Path) -> None:
    """Files that a Delta table shares, and those that compaction writes from the rows of others."""
    schema = with_ids(pa.schema([("v", pa.float64())]))
    rows = pa.table({"v": [math.nan]}, schema=schema)
    iceberg = IcebergFormat()
    for folder, table_format in (("own", iceberg), ("shared", LakeFormat(DeltaFormat(), iceberg))):
        plan = WriteConfig(str(tmp_path / folder), {}, schema, table_format)
        writer = DataFileWriter(plan, NAMES, partition=())
        writer.write(rows.to_batches()[0])
        files = writer.finish()
        (file,) = files if table_format is iceberg else files_of_iceberg(files)
        assert json.loads(file.statistics)["nan_value_counts"] == {}
