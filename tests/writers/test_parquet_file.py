"""The inside of Parquet files: what a table asks for, and the field ids and types that Iceberg wants."""

from __future__ import annotations

import math
import os
import pickle
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types as ice
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.schema import Schema
from tests.support import plans
from tests.support.plans import delta_plan
from tests.writers.task import write_as_task

from penstock.committers.contract import PartitionField
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.parquet.data_file_config import ParquetOptions
from penstock.writers.parquet.write_config import WriteConfig

TYPES = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("l", pa.list_(pa.struct([("x", pa.decimal128(9, 2))]))),
        ("m", pa.map_(pa.string(), pa.list_(pa.uuid()))),
        ("d18", pa.decimal128(18, 2)),
        ("d19", pa.decimal128(19, 2)),
        ("local", pa.timestamp("us")),
        ("utc", pa.timestamp("us", "UTC")),
        ("t", pa.time64("us")),
        ("f", pa.binary(3)),
    ]
)
SCHEMA = pyarrow_to_schema(plans.with_ids(TYPES))
ROW: dict[str, Any] = {
    "id": 1,
    "l": [{"x": Decimal("1.50")}],
    "m": [("k", [str(uuid.UUID(int=1)), None])],
    "d18": Decimal("1.50"),
    "d19": Decimal("1.50"),
    "f": b"abc",
}


def iceberg_plan(path: Path, **options: Any) -> WriteConfig:
    return WriteConfig(
        f"file://{path}", {}, schema_to_pyarrow(SCHEMA, include_field_ids=True), IcebergFormat(), **options
    )


def write(plan: WriteConfig, rows: pa.Table) -> pq.ParquetFile:
    (file,) = write_as_task(plan, rows)
    return pq.ParquetFile(Path(plan.location.removeprefix("file://")) / file.path)


def iceberg_rows() -> pa.Table:
    """UUIDs as Spark has them."""
    schema = iceberg_plan(Path("/t")).row_schema
    fields = [pa.field(name, schema.field(name).type) for name in ROW if name != "m"]
    fields.append(pa.field("m", pa.map_(pa.string(), pa.list_(pa.string()))))
    return pa.Table.from_pylist([ROW], pa.schema(fields))


def test_field_ids_are_at_every_level(tmp_path: Path) -> None:
    """Elements, keys and values too: readers find columns by nothing else."""
    file = write(iceberg_plan(tmp_path), iceberg_rows())
    ids = re.findall(r"field_id=(\d+) (\w+)", str(file.schema))
    assert {name: int(field_id) for field_id, name in ids if name not in ("element", "value")} == {
        "id": 1, "l": 2, "x": 4, "m": 5, "key": 6, "d18": 9, "d19": 10, "local": 11, "utc": 12,
        "t": 13, "f": 14,
    }  # fmt: skip
    assert sorted(int(field_id) for field_id, name in ids if name in ("element", "value")) == [3, 7, 8]


def test_types_are_stored_as_the_specification_says(tmp_path: Path) -> None:
    """ "Appendix A: Parquet". Times in microseconds, decimals in the least that holds them."""
    file = write(iceberg_plan(tmp_path), iceberg_rows())
    columns = [file.schema.column(i) for i in range(len(file.schema.names))]
    stored = {column.path: (column.physical_type, column.length) for column in columns}
    assert stored == {
        "id": ("INT64", 0),
        "l.list.element.x": ("INT32", 0),
        "m.key_value.key": ("BYTE_ARRAY", 0),
        "m.key_value.value.list.element": ("FIXED_LEN_BYTE_ARRAY", 16),
        "d18": ("INT64", 0),
        "d19": ("FIXED_LEN_BYTE_ARRAY", 9),
        "local": ("INT64", 0),
        "utc": ("INT64", 0),
        "t": ("INT64", 0),
        "f": ("FIXED_LEN_BYTE_ARRAY", 3),
    }
    logical = {column.path: str(column.logical_type) for column in columns}
    assert "isAdjustedToUTC=false, timeUnit=microseconds" in logical["local"]
    assert "isAdjustedToUTC=true, timeUnit=microseconds" in logical["utc"]
    assert "timeUnit=microseconds" in logical["t"]
    assert logical["m.key_value.value.list.element"] == "UUID"
    assert b"ARROW:schema" not in (file.metadata.metadata or {})


def test_wide_offsets_of_a_schema_do_not_reach_the_rows(tmp_path: Path) -> None:
    """pyiceberg describes strings and lists as `large_` ones; Spark's rows would be copied for nothing."""
    plan = iceberg_plan(tmp_path)
    assert "large" in str(plan.schema)
    assert "large" not in str(plan.row_schema)
    assert plan.row_schema.field("l").type.value_field.metadata == {b"PARQUET:field_id": b"3"}
    assert pickle.loads(pickle.dumps(plan)) == plan


def numbers(rows: int = 20_000) -> pa.Table:
    return pa.table({"id": range(rows), "v": [os.urandom(8).hex() for _ in range(rows)]})


def test_row_groups_are_bounded_in_bytes(tmp_path: Path) -> None:
    rows = numbers()
    file = write(delta_plan(tmp_path, rows.schema, row_group_bytes=50_000), rows)
    groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    sizes = [sum(group.column(i).total_compressed_size for i in range(2)) for group in groups]
    assert len(groups) > 4
    assert max(sizes) < 60_000
    assert sorted(sizes)[len(sizes) // 2] > 40_000
    assert pl.read_parquet(tmp_path)["id"].to_list() == list(range(20_000))


@pytest.mark.parametrize(
    "options", [ParquetOptions(page_rows=500), ParquetOptions(page_bytes=4000)], ids=["rows", "bytes"]
)
def test_pages_are_bounded(options: ParquetOptions, tmp_path: Path) -> None:
    """Smaller pages have more headers: what the footer tells of them."""
    rows = numbers()
    small = write(delta_plan(tmp_path / "small", rows.schema, parquet=options, compression="none"), rows)
    usual = write(delta_plan(tmp_path / "usual", rows.schema, compression="none"), rows)
    sizes = [file.metadata.row_group(0).column(1).total_compressed_size for file in (small, usual)]
    assert sizes[0] > sizes[1] + 30 * 15
    assert pl.read_parquet(tmp_path / "small")["v"].to_list() == rows["v"].to_pylist()


def test_a_page_has_a_hundred_thousand_rows(tmp_path: Path) -> None:
    """Of small values: bytes alone would not end it. More pages have more headers."""
    rows = pa.table({"v": [i % 7 for i in range(200_000)]})
    sizes = {
        page_rows: write(
            delta_plan(
                tmp_path / str(page_rows),
                rows.schema,
                parquet=ParquetOptions(page_rows=page_rows),
                compression="none",
            ),
            rows,
        )
        .metadata.row_group(0)
        .column(0)
        .total_compressed_size
        for page_rows in (None, 20_000, 100_000, 200_000)
    }
    assert sizes[None] == sizes[100_000] < sizes[20_000]
    assert sizes[200_000] < sizes[100_000]


def test_dictionaries_are_bounded(tmp_path: Path) -> None:
    rows = pa.table({"v": [f"{i % 1000:0100}" for i in range(20_000)]})
    bounded = ParquetOptions(dictionary_bytes=5000)
    small = write(delta_plan(tmp_path / "small", rows.schema, parquet=bounded), rows)
    usual = write(delta_plan(tmp_path / "usual", rows.schema), rows)
    encodings = [file.metadata.row_group(0).column(0).encodings for file in (small, usual)]
    assert "PLAIN" in encodings[0]
    sizes = [file.metadata.row_group(0).column(0).total_uncompressed_size for file in (small, usual)]
    assert sizes[0] > 5 * sizes[1]
    assert pl.read_parquet(tmp_path / "small")["v"].to_list() == rows["v"].to_pylist()


def test_compression_levels_count_where_the_codec_has_some(tmp_path: Path) -> None:
    rows = pa.table({"v": [f"{i * 7919 % 5003} {i}" for i in range(50_000)]})
    sizes = {
        level: write(delta_plan(tmp_path / str(level), rows.schema, compression_level=level), rows)
        .metadata.row_group(0)
        .column(0)
        .total_compressed_size
        for level in (1, 19)
    }
    assert sizes[19] < sizes[1]
    for codec in ("snappy", "lz4", "none"):
        plan = delta_plan(tmp_path / codec, rows.schema, compression=codec, compression_level=3)
        assert write(plan, rows).metadata.num_rows == 50_000


bloom_filters = pytest.mark.skipif(
    "bloom_filter_options" not in pq.ParquetWriter.__init__.__code__.co_varnames,
    reason="this pyarrow writes no Bloom filters",
)


@bloom_filters
def test_bloom_filters_are_used_by_others(tmp_path: Path) -> None:
    """duckdb tells which row groups a value cannot be in. A boolean has no filter and is no error."""
    element = pa.list_(pa.struct([("x", pa.int64())]))
    rows = numbers(3000).append_column("b", pa.array([True] * 3000))
    rows = rows.append_column("l", pa.array([[{"x": 1}]] * 3000, element))
    columns = (("v",), ("b",), ("l", "element", "x"))
    plan = delta_plan(
        tmp_path, rows.schema, parquet=ParquetOptions(bloom_columns=columns), row_group_rows=1000
    )
    write(plan, rows)
    (path,) = tmp_path.glob("*.parquet")
    value = rows["v"][1500].as_py()
    probe = f"SELECT * FROM parquet_bloom_probe('{path}', 'v', '{value}')"
    excluded = [row[-1] for row in duckdb.sql(probe).fetchall()]
    assert excluded.count(False) >= 1
    assert excluded.count(True) >= 1
    found = duckdb.sql(f"SELECT id FROM read_parquet('{path}') WHERE v = '{value}'").fetchall()
    assert found == [(1500,)]
    offsets = duckdb.sql(
        f"SELECT path_in_schema, bloom_filter_offset IS NOT NULL FROM parquet_metadata('{path}')"
    ).fetchall()
    assert dict(offsets) == {"id": False, "v": True, "b": False, "l, list, element, x": True}


FLOATING = {
    "f4": pa.float32(),
    "f8": pa.float64(),
    "s": pa.struct([("x", pa.float64())]),
    "l": pa.list_(pa.field("element", pa.float64())),
    "m": pa.map_(pa.string(), pa.float64()),
}


def floating_rows(values: list[float]) -> pa.Table:
    """The values as numbers, in structs, lists and maps."""
    columns: list[list[Any]] = [
        values, values, [{"x": v} for v in values], [[v] for v in values], [[("k", v)] for v in values]
    ]  # fmt: skip
    arrays = [pa.array(column, kind) for column, kind in zip(columns, FLOATING.values(), strict=True)]
    return pa.table(arrays, names=list(FLOATING))


PLACES = ("f4", "f8", "s.x", "l[1]", "m['k']")


@pytest.mark.parametrize("plan_of", [delta_plan, plans.iceberg_plan])
def test_nan_is_found_by_engines_that_hold_it_for_the_greatest_number(
    plan_of: Callable[..., WriteConfig], tmp_path: Path
) -> None:
    """duckdb skips row groups by the footer, whose maximum Arrow would take from the other values."""
    rows = floating_rows([1.0, math.nan, -0.0, 0.0])
    file = write(plan_of(tmp_path, rows.schema, row_group_rows=2), rows)
    for place in PLACES:
        for where, count in (("> 5", 1), ("= 'nan'::DOUBLE", 1), ("< 1", 2), ("= 0.0", 2), ("= -0.0", 2)):
            query = f"SELECT count(*) FROM '{tmp_path}/*.parquet' WHERE {place} {where}"
            assert duckdb.sql(query).fetchall() == [(count,)], query
    columns = [file.metadata.row_group(0).column(i) for i in range(file.metadata.num_columns)]
    with_statistics = [column.path_in_schema for column in columns if column.is_stats_set]
    assert with_statistics == ["m.key_value.key"]


@bloom_filters
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_are_found_in_columns_with_bloom_filters(zero: float, tmp_path: Path) -> None:
    """A filter would hold bits, and 0.0 and -0.0, which are equal, have different ones."""
    rows = floating_rows([zero, 1.0] * 1000)
    options = ParquetOptions(bloom_columns=(("f4",), ("f8",), ("s", "x")))
    write(delta_plan(tmp_path, rows.schema, parquet=options), rows)
    for place in PLACES[:3]:
        for literal in ("0.0", "-0.0"):
            query = f"SELECT count(*) FROM '{tmp_path}/*.parquet' WHERE {place} = {literal}"
            assert duckdb.sql(query).fetchall() == [(1000,)], query


def test_a_partitioned_file_has_all_columns(tmp_path: Path) -> None:
    """Iceberg's readers want identity partition columns too."""
    arrow = schema_to_pyarrow(
        Schema(ice.NestedField(1, "id", ice.LongType()), ice.NestedField(2, "p", ice.StringType())),
        include_field_ids=True,
    )
    table_format = IcebergFormat((PartitionField("p", ("p",), "identity"),))
    file = write(WriteConfig(str(tmp_path), {}, arrow, table_format), pa.table({"id": [1], "p": ["x"]}))
    assert file.schema_arrow.names == ["id", "p"]
