"""Rewritten files are equal to those of one writer with the same rows; a failure leaves no file."""

from __future__ import annotations

import itertools
import os
import signal
import struct
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.iceberg_kinds import KINDS, Kind, column
from tests.support.plans import delta_plan, with_ids
from tests.writers.task import NAMES, write_as_task

from penstock.committers.contract import DataFile, PartitionField, SortField
from penstock.committers.errors import PenstockError, RetryableError
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.parquet.compaction import (
    GROUP_FILES,
    GROUP_TARGETS,
    RewriteGroup,
    choose_groups,
    delete_files,
    rewrite_group,
)
from penstock.writers.parquet.compaction_process import RewriteProcess
from penstock.writers.parquet.file_names import FileNames, parse_file_name
from penstock.writers.parquet.table_format import PartitionValues
from penstock.writers.parquet.write_config import WriteConfig

MIB = 1024 * 1024
NEW = FileNames("query", "delivery", 9, 0, 0)


def write_pieces(plan: WriteConfig, rows: pa.Table, size: int) -> list[DataFile]:
    """Write every `size` rows as another task attempt."""
    starts = range(0, rows.num_rows, size)
    return [
        file
        for attempt, start in enumerate(starts)
        for file in write_as_task(plan, rows.slice(start, size), replace(NAMES, attempt=attempt))
    ]


def rewrite(plan: WriteConfig, files: Sequence[DataFile]) -> list[DataFile]:
    """Rewrite all files of each table partition, for any target size."""
    by_partition: dict[PartitionValues, list[DataFile]] = {}
    for file in files:
        by_partition.setdefault(file.partition_values, []).append(file)
    groups = [RewriteGroup(n, part, tuple(small)) for n, (part, small) in enumerate(by_partition.items())]
    return [
        new for group in groups for new in rewrite_group(plan, replace(NEW, partition=group.number), group)
    ]


def content(plan: WriteConfig, file: DataFile) -> bytes:
    return (Path(plan.location) / file.path).read_bytes()


def on_disk(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.parquet")}


def assert_as_by_one_writer(plan: WriteConfig, rows: pa.Table, size: int) -> None:
    """Check that rewritten files are equal to those of one writer, byte by byte, with the same statistics."""
    new = rewrite(plan, write_pieces(plan, rows, size))
    whole = {
        file.partition_values: file for file in write_as_task(plan, rows, replace(NAMES, attempt=1_000_000))
    }
    assert {file.partition_values for file in new} == whole.keys()
    assert len(new) == len(whole)
    for file in new:
        expected = whole[file.partition_values]
        assert (file.rows, file.size_bytes) == (expected.rows, expected.size_bytes)
        assert file.statistics == expected.statistics
        assert Path(file.path).parent == Path(expected.path).parent
        assert content(plan, file) == content(plan, expected)


# Rows, and what is known of them ------------------------------------------------------------------

NAN, NEGATIVE_NAN, ODD_NAN = (struct.unpack("<d", n.to_bytes(8, "little"))[0] for n in (
    0x7FF8_0000_0000_0000, 0xFFF8_0000_0000_0000, 0x7FF0_0000_0000_0001,
))  # fmt: skip
INNER = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.field("element", pa.string())))])
DOUBLES = (
    st.sampled_from([0.0, -0.0, NAN, NEGATIVE_NAN, ODD_NAN, float("inf"), -5e-324, 1.7e308]) | st.floats()
)
FIRST_AND_LAST = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]  # noqa: DTZ001
TEXTS = st.text(max_size=40).filter(lambda text: "\0" not in text)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    unscaled = st.sampled_from([most, -most, 0]) | st.integers(-most, most)
    return unscaled.map(lambda number: Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)))


INNERS = maybe(st.fixed_dictionaries({"x": maybe(DOUBLES), "y": maybe(st.lists(maybe(TEXTS), max_size=3))}))
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "id": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "flag": (pa.bool_(), st.booleans()),
    "tiny": (pa.int8(), st.integers(-128, 127)),
    "short": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "real": (pa.float32(), st.floats(width=32) | st.sampled_from([0.0, -0.0])),
    "double": (pa.float64(), DOUBLES),
    "small": (pa.decimal128(9, 2), decimals(9, 2)),
    "wide": (pa.decimal128(38, 10), decimals(38, 10)),
    "text": (pa.string(), TEXTS),
    "bytes": (pa.binary(), st.binary(max_size=40)),
    "day": (pa.date32(), st.sampled_from([date.min, date.max, date(1970, 1, 1)]) | st.dates()),
    "at": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(timezone.utc))),
    "at_local": (pa.timestamp("us"), st.sampled_from(FIRST_AND_LAST) | st.datetimes()),
    "list": (pa.list_(pa.field("element", INNER)), st.lists(INNERS, max_size=3)),
    "map": (
        pa.map_(pa.string(), INNER),
        st.dictionaries(TEXTS, INNERS, max_size=3).map(lambda found: list(found.items())),
    ),
    "struct": (
        pa.struct([("inner", INNER), ("d", pa.decimal128(38, 0))]),
        st.fixed_dictionaries({"inner": INNERS, "d": maybe(decimals(38, 0))}),
    ),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
ROWS = st.fixed_dictionaries({name: maybe(values) for name, (_, values) in COLUMNS.items()})
DELTA_PARTITIONS = [(), ("flag",), ("small", "text"), ("day", "int"), ("at",), ("at_local", "tiny")]

thorough = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@thorough
@given(
    rows=st.lists(ROWS, min_size=2, max_size=14),
    size=st.integers(1, 4),
    partition_by=st.sampled_from(DELTA_PARTITIONS),
)
def test_delta_files_are_byte_by_byte_those_of_one_writer(
    rows: list[Any], size: int, partition_by: tuple[str, ...], tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("t")
    plan = delta_plan(folder, SCHEMA, partition_by=partition_by, statistics_columns_max=7)
    table = pa.Table.from_pylist(rows, SCHEMA)
    for name in ("text",) if "text" in partition_by else ():  # too long for the name of a directory
        table = table.filter(
            pa.compute.less(pa.compute.binary_length(pa.compute.fill_null(table[name], "")), 30)
        )
    if table.num_rows:
        assert_as_by_one_writer(plan, table, size)


@thorough
@given(rows=st.lists(ROWS, min_size=2, max_size=14), size=st.integers(1, 4), partitioned=st.booleans())
def test_iceberg_files_are_byte_by_byte_those_of_one_writer(
    rows: list[Any], size: int, partitioned: bool, tmp_path_factory: Any
) -> None:
    """Field ids are in the files' schemas too."""
    partitioning = (PartitionField("flag", ("flag",), "identity"), PartitionField("dropped", (), "void"))
    schema = with_ids(SCHEMA)
    metrics = {int(schema.field("text").metadata[b"PARQUET:field_id"]): "full"}
    location = str(tmp_path_factory.mktemp("t"))
    plan = WriteConfig(location, {}, schema, IcebergFormat(partitioning if partitioned else (), metrics))
    assert_as_by_one_writer(plan, pa.Table.from_pylist(rows, SCHEMA), size)


@pytest.mark.parametrize(
    ("kind", "transform"),
    [(kind, transform) for kind in KINDS for transform in (*kind.transforms, "void")],
    ids=str,
)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_files_of_every_iceberg_partition_are_those_of_one_writer(
    kind: Kind, transform: str, data: st.DataObject, tmp_path_factory: Any
) -> None:
    values = data.draw(st.lists(maybe(kind.values), min_size=2, max_size=12))
    schema = with_ids(pa.schema([("id", pa.int64()), ("s", pa.struct([("v", kind.arrow)]))]))
    partitioning = (PartitionField("p", ("s", "v"), transform),)
    plan = WriteConfig(str(tmp_path_factory.mktemp("t")), {}, schema, IcebergFormat(partitioning))
    child = column(kind, values)
    inside = pa.StructArray.from_arrays([child], fields=[pa.field("v", child.type)])
    rows = pa.table({"id": pa.array(range(len(values)), pa.int64()), "s": inside})
    assert_as_by_one_writer(plan, rows, 2)


def test_null_in_required_columns_of_a_null_struct_stays(tmp_path: Path) -> None:
    required = [pa.field("x", pa.int64(), nullable=False), pa.field("u", pa.string(), nullable=False)]
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.struct(required))])
    given = pa.struct([field.with_nullable(True) for field in required])
    structs = pa.array([{"x": n, "u": "a"} if n % 2 else None for n in range(6)], given)
    assert_as_by_one_writer(delta_plan(tmp_path, schema), pa.table({"id": range(6), "s": structs}), 2)


def test_another_engine_reads_the_same_rows_from_both(tmp_path: Path) -> None:
    plan = delta_plan(tmp_path, SCHEMA)
    rows = pa.Table.from_pylist(
        [
            {
                "id": n,
                "double": [NAN, -0.0, 0.0, None][n % 4],
                "wide": Decimal("-9999999999999999999999999999.9999999999"),
                "bytes": bytes([n, 0, 255]),
                "at": FIRST_AND_LAST[1].replace(tzinfo=timezone.utc),
                "list": [None, {"x": -0.0, "y": [None, ""]}, {"x": None, "y": None}] if n % 3 else None,
                "map": [("k", None), ("", {"x": NAN, "y": []})] if n % 2 else [],
                "struct": None if n % 5 else {"inner": None, "d": None},
            }
            for n in range(40)
        ],
        SCHEMA,
    )
    files = write_pieces(plan, rows, 3)
    (new,) = rewrite(plan, files)

    def by_duckdb(these: Sequence[DataFile]) -> list[str]:
        paths = [str(tmp_path / file.path) for file in these]
        return [
            repr(row) for row in duckdb.sql(f"SELECT * FROM read_parquet({paths}) ORDER BY id").fetchall()
        ]

    assert by_duckdb([new]) == by_duckdb(files)
    assert len(by_duckdb([new])) == 40


def test_rows_are_sorted_within_each_row_group_if_the_plan_asks_for_it(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64())])
    unsorted = delta_plan(tmp_path, schema)
    plan = replace(unsorted, sort=(SortField(("v",), is_descending=True),), row_group_rows=50)
    files = write_pieces(unsorted, pa.table({"v": [n * 37 % 100 for n in range(100)]}), 10)
    (new,) = rewrite(plan, files)
    parquet = pq.ParquetFile(tmp_path / new.path)
    groups = [parquet.read_row_group(i)["v"].to_pylist() for i in range(parquet.num_row_groups)]
    assert [len(group) for group in groups] == [50, 50]
    assert all(group == sorted(group, reverse=True) for group in groups)
    assert sorted(itertools.chain(*groups)) == list(range(100))


def test_large_sources_become_files_of_the_target_size(tmp_path: Path) -> None:
    """Not read at once: each has more rows than a batch, and one is fetched in pieces."""
    plan = delta_plan(tmp_path, pa.schema([("v", pa.binary())]), target_file_bytes=2 * MIB)
    rows = pa.table({"v": [os.urandom(60) for _ in range(90_000)]})
    files = write_pieces(replace(plan, target_file_bytes=64 * MIB), rows, 30_000)
    assert min(file.size_bytes for file in files) > MIB
    new = rewrite(plan, files)
    assert sum(file.rows for file in new) == 90_000
    assert all(1.7 * MIB < file.size_bytes < 2.3 * MIB for file in new[:-1])
    read = pa.concat_tables([pq.read_table(tmp_path / file.path) for file in new])
    assert read.equals(rows)


# Which files --------------------------------------------------------------------------------------


def files_of(*sizes: int, partition: PartitionValues = ()) -> list[DataFile]:
    prefix = "".join(f"{value}-" for _, value in partition)
    return [DataFile(f"{prefix}{n}.parquet", size, 1, partition, "{}") for n, size in enumerate(sizes)]


def paths(group: RewriteGroup) -> list[str]:
    return [source.path for source in group.sources]


def test_small_files_of_a_partition_go_together_in_order() -> None:
    first, second = (("p", "a"),), (("p", None),)
    one, other = files_of(1, 2, 3, partition=first), files_of(4, 5, partition=second)
    groups = choose_groups([one[0], other[0], *one[1:], other[1]], 100)
    assert [(group.number, group.partition) for group in groups] == [(0, first), (1, second)]
    assert [paths(group) for group in groups] == [[file.path for file in one], [file.path for file in other]]


def test_files_near_the_target_size_stay() -> None:
    (group,) = choose_groups(files_of(10, 75, 74, 200, 10), 100)
    assert paths(group) == ["0.parquet", "2.parquet", "4.parquet"]


@pytest.mark.parametrize("sizes", [(), (10,), (74, 74), (10, 80)])
def test_groups_that_would_not_become_fewer_files_are_not_rewritten(sizes: tuple[int, ...]) -> None:
    assert choose_groups(files_of(*sizes), 100) == []


@given(st.lists(st.integers(1, 120), max_size=60), st.sampled_from([100, 1000]))
def test_groups_are_bounded_disjoint_and_always_the_same(sizes: list[int], target: int) -> None:
    files = files_of(*sizes)
    groups = choose_groups(files, target)
    assert groups == choose_groups(files, target)
    chosen = [path for group in groups for path in paths(group)]
    assert chosen == sorted(chosen, key=lambda path: int(path.partition(".")[0]))
    assert len(set(chosen)) == len(chosen)
    assert all(group.size_bytes <= (GROUP_TARGETS + 1) * target for group in groups)
    left = [file for file in files if file.path not in chosen and file.size_bytes < 0.75 * target]
    assert len(left) <= 1 or sum(file.size_bytes for file in left) > len(left) * target / 2


def test_many_tiny_files_are_several_even_groups() -> None:
    files = files_of(*[3000] * (GROUP_FILES + 400))
    assert {len(group.sources) for group in choose_groups(files, 128 * MIB)} == {GROUP_FILES // 2 + 200}


# Failures -----------------------------------------------------------------------------------------


def some(folder: Path, rows: int = 30) -> tuple[WriteConfig, list[DataFile], RewriteGroup]:
    plan = delta_plan(folder, pa.schema([("v", pa.int64())]), row_group_rows=5, target_file_bytes=1000)
    files = write_pieces(replace(plan, target_file_bytes=MIB), pa.table({"v": range(rows)}), 3)
    return plan, files, RewriteGroup(4, (), tuple(files))


def test_a_missing_source_is_named_and_no_new_file_remains(tmp_path: Path) -> None:
    plan, files, group = some(tmp_path)
    missing = tmp_path / files[-1].path
    missing.unlink()
    with pytest.raises(RetryableError, match=missing.name):
        rewrite_group(plan, NEW, group)
    assert on_disk(tmp_path) == {file.path for file in files[:-1]}


@pytest.mark.parametrize("damage", ["cut off", "of other rows", "garbage"])
def test_a_damaged_source_is_named_and_no_new_file_remains(tmp_path: Path, damage: str) -> None:
    plan, files, group = some(tmp_path)
    path = tmp_path / files[7].path
    if damage == "of other rows":
        pq.write_table(pa.table({"v": range(4)}), path)
        there = replace(files[7], size_bytes=path.stat().st_size)
        group = replace(group, sources=(*files[:7], there, *files[8:]))
    else:
        path.write_bytes(path.read_bytes()[:-9] if damage == "cut off" else bytes(files[7].size_bytes))
    with pytest.raises(PenstockError, match=path.name) as raised:
        rewrite_group(plan, NEW, group)
    assert type(raised.value) is PenstockError
    assert on_disk(tmp_path) == {file.path for file in files}


def test_the_same_names_twice_overwrite_nothing(tmp_path: Path) -> None:
    plan, _, group = some(tmp_path)
    new = rewrite_group(plan, NEW, group)
    before = {file.path: content(plan, file) for file in new}
    with pytest.raises(RetryableError, match="already exists"):
        rewrite_group(plan, NEW, group)
    assert {file.path: content(plan, file) for file in new} == before


def test_clean_up_recognizes_the_names_of_new_files(tmp_path: Path) -> None:
    plan, files, group = some(tmp_path)
    for file in rewrite_group(plan, replace(NEW, partition=group.number), group):
        name = parse_file_name(file.path)
        assert name is not None
        assert (name.query_id, name.batch_id, name.partition, name.attempt) == ("query", 9, 4, 0)
    delete_files(plan, [*files, DataFile("never-there.parquet", 1, 1)])
    assert not on_disk(tmp_path) & {file.path for file in files}


# A process of its own -----------------------------------------------------------------------------


def test_a_process_writes_the_same_files_and_reports_errors(tmp_path: Path) -> None:
    plan, files, group = some(tmp_path)
    expected = [content(plan, file) for file in rewrite_group(plan, NEW, group)]
    with RewriteProcess() as process:
        new = process.rewrite(plan, replace(NEW, run_id="other"), group)
        (tmp_path / files[2].path).unlink()
        with pytest.raises(RetryableError, match=Path(files[2].path).name):
            process.rewrite(plan, replace(NEW, run_id="third"), group)
    assert [content(plan, file) for file in new] == expected


def test_a_killed_process_is_a_retryable_error(tmp_path: Path) -> None:
    plan, _, group = some(tmp_path)
    with RewriteProcess() as process:
        process.rewrite(plan, NEW, group)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RetryableError, match="exit code -9"):
            process.rewrite(plan, replace(NEW, run_id="other"), group)
