"""Data files of one task attempt: complete, bounded, durable, and deleted by an abort."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from tests.support.plans import delta_plan
from tests.writers.task import NAMES, write_all

from penstock.committers import crash_points
from penstock.committers.errors import RetryableError, SchemaMismatchError
from penstock.writers.parquet.buffers import RowBuffers, RowGroup
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.file import WRITER_BYTES
from penstock.writers.parquet.file_names import parse_file_name


class Killed(BaseException):
    pass


def writer_of(path: Path, schema: pa.Schema, **options: Any) -> DataFileWriter:
    return DataFileWriter(delta_plan(path, schema, **options), NAMES)


def numbers(rows: int, partitions: int = 1) -> pa.Table:
    return pa.table({"id": range(rows), "p": [i % partitions for i in range(rows)]})


def read_ids(path: Path) -> list[int]:
    rows = duckdb.sql(f"SELECT id FROM read_parquet('{path}/**/*.parquet', hive_partitioning = false)")
    return sorted(row[0] for row in rows.fetchall())


def leftovers(path: Path) -> list[Path]:
    return [entry for entry in path.rglob("*") if entry.is_file()]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.integers(1, 700),
    partitions=st.integers(1, 9),
    partitioned=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "target_file_bytes": st.integers(200, 20_000),
            "row_group_rows": st.integers(1, 300),
            "max_open_partitions": st.integers(1, 4),
            "buffer_bytes_max": st.integers(1, 30_000),
            "sort_within": st.sampled_from([(), ("id",)]),
        }
    ),
)
def test_every_row_is_in_one_file_whatever_the_bounds(
    rows: int, partitions: int, partitioned: bool, options: dict[str, Any], tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("table")
    table = numbers(rows, partitions)
    writer = writer_of(path, table.schema, partition_by=("p",) if partitioned else (), **options)
    write_all(writer, table, 90)
    files = writer.finish()
    assert sorted(file.path for file in files) == sorted(
        str(found.relative_to(path)) for found in leftovers(path)
    )
    assert read_ids(path) == list(range(rows))
    for file in files:
        footer = pq.read_metadata(path / file.path)
        assert (file.rows, file.size_bytes) == (footer.num_rows, (path / file.path).stat().st_size)
        assert all(
            footer.row_group(i).num_rows <= options["row_group_rows"] for i in range(footer.num_row_groups)
        )
        name = parse_file_name(file.path)
        assert name is not None
        assert (name.query_id, name.batch_id, name.partition, name.attempt) == ("query", 7, 3, 12)
        if partitioned:
            ids = pq.read_table(path / file.path, partitioning=None)["id"].to_pylist()
            assert {str(i % partitions) for i in ids} == {dict(file.partition_values)["p"]}


def test_partition_columns_are_not_in_the_file(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, numbers(1).schema, partition_by=("p",))
    write_all(writer, numbers(1))
    (file,) = writer.finish()
    assert pq.read_schema(tmp_path / file.path).names == ["id"]


def test_small_batches_become_one_row_group(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, numbers(1).schema, row_group_rows=1000)
    write_all(writer, numbers(2500))
    (file,) = writer.finish()
    footer = pq.read_metadata(tmp_path / file.path)
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [1000, 1000, 500]


def test_files_are_rolled_near_the_target_size(tmp_path: Path) -> None:
    rows = pa.table({"v": [os.urandom(50) for _ in range(20_000)]})
    writer = writer_of(tmp_path, rows.schema, target_file_bytes=200_000)
    write_all(writer, rows, 1000)
    sizes = [file.size_bytes for file in writer.finish()]
    assert len(sizes) == 6
    assert all(170_000 < size < 230_000 for size in sizes[:-1])


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    opened: list[int] = []
    table = numbers(2000, 20)
    writer = writer_of(tmp_path, table.schema, partition_by=("p",), max_open_partitions=3, buffer_bytes_max=1)
    for batch in table.to_batches(max_chunksize=100):
        writer.write(batch)
        opened.append(open_parquet_files())
    writer.finish()
    assert max(opened) == 3
    assert read_ids(tmp_path) == list(range(2000))


def test_a_table_partition_with_scattered_rows_has_one_file(tmp_path: Path) -> None:
    """300 partitions, each with many row groups: they were 3,000 files when 100 could be open."""
    table = numbers(30_000, 300)
    writer = writer_of(tmp_path, table.schema, partition_by=("p",), buffer_bytes_max=48_000)
    write_all(writer, table, 3000)
    files = writer.finish()
    assert len(files) == 300
    assert sum(pq.read_metadata(tmp_path / file.path).num_row_groups for file in files) > 600
    assert read_ids(tmp_path) == list(range(30_000))


def test_the_largest_files_are_closed_when_open_ones_take_too_much_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.writers.parquet.open_files.MEMORY_BYTES_MIN", 10 * WRITER_BYTES)
    table = numbers(6_000, 20)
    opened: list[int] = []
    writer = writer_of(tmp_path, table.schema, partition_by=("p",), buffer_bytes_max=1)
    for batch in table.to_batches(max_chunksize=100):
        writer.write(batch)
        opened.append(open_parquet_files())
    files = writer.finish()
    assert max(opened) <= 10
    assert read_ids(tmp_path) == list(range(6_000))
    row_groups = [pq.read_metadata(tmp_path / file.path).num_row_groups for file in files]
    assert sum(row_groups) > 1.3 * len(files), "each row group has a file of its own"


def test_no_more_text_is_split_at_once_than_an_array_can_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gigabytes, here one megabyte, are less than a quarter of a generous `bufferSize`."""
    monkeypatch.setattr("penstock.writers.parquet.data_files.ARRAY_BYTES_MAX", 1024**2)
    sizes: list[int] = []
    add = RowBuffers.add

    def measure_and_add(buffers: RowBuffers, batches: list[pa.RecordBatch]) -> Iterator[RowGroup]:
        sizes.append(sum(batch.nbytes for batch in batches))
        return add(buffers, batches)

    monkeypatch.setattr(RowBuffers, "add", measure_and_add)
    rows = pa.table({"text": ["x" * 1024] * 4000, "p": [0] * 4000})
    writer = writer_of(tmp_path, rows.schema, partition_by=("p",), buffer_bytes_max=1024**3)
    write_all(writer, rows)
    assert sum(file.rows for file in writer.finish()) == 4000
    assert 4 <= len(sizes) <= 6
    assert max(sizes) <= 1024**2


def test_half_of_the_files_that_a_process_may_open_are_left_to_others(tmp_path: Path) -> None:
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        "from pathlib import Path\n"
        "from tests.writers.test_data_files import numbers, writer_of, write_all\n"
        f"writer = writer_of(Path({str(tmp_path)!r}), numbers(1).schema, partition_by=('p',), "
        "buffer_bytes_max=1)\n"
        "write_all(writer, numbers(3000, 150))\n"
        "print(sum(file.rows for file in writer.finish()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "3000\n", done.stderr


def open_parquet_files() -> int:
    paths: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it may have been closed just now
            paths.append(str(link.readlink()))
    return sum(path.endswith(".parquet") for path in paths)


@pytest.mark.parametrize(("is_local", "files_min", "files_max"), [(True, 20, 20), (False, 30, 80)])
def test_queued_uploads_count_as_memory(
    is_local: bool, files_min: int, files_max: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 partitions of 200 kB each, while open files may take a megabyte."""
    for least in ("MEMORY_BYTES_MIN", "UPLOAD_BYTES_MIN"):
        monkeypatch.setattr(f"penstock.writers.parquet.open_files.{least}", 1_000_000)
    rows = pa.table({"v": [os.urandom(1000) for _ in range(4000)], "p": [n % 20 for n in range(4000)]})
    plan = delta_plan(tmp_path, rows.schema, partition_by=("p",), buffer_bytes_max=400_000)
    filesystem = LocalFileSystem() if is_local else SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    for partition in range(20):
        (tmp_path / f"p={partition}").mkdir()  # which an object store does not need
    writer = DataFileWriter(plan, NAMES, (filesystem, str(tmp_path) if is_local else ""))
    write_all(writer, rows)
    files = writer.finish()
    assert sum(file.rows for file in files) == 4000
    assert files_min <= len(files) <= files_max


def test_row_groups_are_sorted_nulls_last(tmp_path: Path) -> None:
    rows = pa.table({"a": [2, 1, None, 1], "b": ["x", "z", "y", "a"]})
    writer = writer_of(tmp_path, rows.schema, sort_within=("a", "b"))
    writer.write(rows.to_batches()[0])
    (file,) = writer.finish()
    assert pl.read_parquet(tmp_path / file.path).rows() == [(1, "a"), (1, "z"), (2, "x"), (None, "y")]


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4", "none"])
def test_compressions_are_read_by_others(compression: str, tmp_path: Path) -> None:
    writer = writer_of(tmp_path, numbers(1).schema, compression=compression)
    write_all(writer, numbers(500))
    (file,) = writer.finish()
    assert pl.read_parquet(tmp_path / file.path)["id"].to_list() == list(range(500))
    codec = pq.read_metadata(tmp_path / file.path).row_group(0).column(0).compression
    assert codec == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


def test_no_rows_no_file(tmp_path: Path) -> None:
    writer = writer_of(tmp_path / "table", numbers(1).schema)
    writer.write(pa.RecordBatch.from_pylist([], schema=numbers(1).schema))
    assert writer.finish() == ()
    assert not (tmp_path / "table").exists()


def test_timestamps_are_stored_as_microseconds_utc_or_local(tmp_path: Path) -> None:
    rows = pa.table(
        {"z": pa.array([1], pa.timestamp("us", "Etc/UTC")), "n": pa.array([1], pa.timestamp("us"))}
    )
    schema = pa.schema([("z", pa.timestamp("us", "UTC")), ("n", pa.timestamp("us"))])
    writer = writer_of(tmp_path, schema)
    writer.write(rows.to_batches()[0])
    (file,) = writer.finish()
    zoned, local = (pq.ParquetFile(tmp_path / file.path).schema.column(i) for i in range(2))
    assert zoned.physical_type == local.physical_type == "INT64"
    assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(zoned.logical_type)
    assert "isAdjustedToUTC=false, timeUnit=microseconds" in str(local.logical_type)


# Failure --------------------------------------------------------------------------------------------


def test_abort_leaves_nothing(tmp_path: Path) -> None:
    writer = writer_of(
        tmp_path, numbers(1).schema, partition_by=("p",), buffer_bytes_max=1, target_file_bytes=1
    )
    write_all(writer, numbers(500, 5))
    assert leftovers(tmp_path)
    writer.abort()
    assert leftovers(tmp_path) == []


def test_abort_after_close_leaves_nothing(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, numbers(1).schema)
    write_all(writer, numbers(500))
    writer.finish()
    writer.abort()
    assert leftovers(tmp_path) == []


def test_abort_deletes_only_own_files(tmp_path: Path) -> None:
    (tmp_path / "other.parquet").write_bytes(b"theirs")
    writer = writer_of(tmp_path, numbers(1).schema, buffer_bytes_max=1)
    write_all(writer, numbers(500))
    writer.abort()
    assert [path.name for path in leftovers(tmp_path)] == ["other.parquet"]


def test_abort_raises_nothing_if_the_files_are_missing(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, numbers(1).schema, buffer_bytes_max=1)
    write_all(writer, numbers(500))
    for path in leftovers(tmp_path):
        path.unlink()
    writer.abort()


def test_null_in_a_required_column_is_refused_before_a_file_is_closed(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    writer = writer_of(tmp_path, schema)
    with pytest.raises(SchemaMismatchError, match=r"NULL in id, .*batch 7, partition 3, attempt 12"):
        writer.write(pa.record_batch({"id": pa.array([1, None])}))
    assert leftovers(tmp_path) == []


def test_a_file_of_the_same_name_is_never_overwritten(tmp_path: Path) -> None:
    """Another attempt under the same ids may have been committed."""
    first, second = (writer_of(tmp_path, numbers(1).schema) for _ in range(2))
    write_all(first, numbers(10))
    (file,) = first.finish()
    write_all(second, numbers(500))
    with pytest.raises(RetryableError, match=file.path):
        second.finish()
    second.abort()
    assert read_ids(tmp_path) == list(range(10))


# Durability and crash points ------------------------------------------------------------------------


def test_files_and_directories_are_synced_before_the_last_crash_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reached: list[tuple[str, int]]
) -> None:
    """A manifest must not outlive its files when the power fails."""
    synced: set[str] = set()
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        if ("write.files_closed", 7) not in reached:
            synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    writer = writer_of(tmp_path, numbers(1).schema, partition_by=("p",))
    write_all(writer, numbers(10, 2))
    files = writer.finish()
    expected = {str(tmp_path), str(tmp_path / "p=0"), str(tmp_path / "p=1")}
    assert expected | {str(tmp_path / file.path) for file in files} == {path.rstrip("/") for path in synced}


def test_crash_points_are_reached_once_in_order(tmp_path: Path, reached: list[tuple[str, int]]) -> None:
    writer = writer_of(tmp_path, numbers(1).schema, partition_by=("p",), buffer_bytes_max=1)
    write_all(writer, numbers(500, 3))
    assert reached == [("write.file_open", 7)]
    assert sum(path.stat().st_size for path in leftovers(tmp_path)) > 0
    writer.finish()
    assert reached == [("write.file_open", 7), ("write.files_closed", 7)]


def test_a_writer_killed_with_open_files_leaves_only_recognisable_orphans(tmp_path: Path) -> None:
    def kill(point: str, batch_id: int) -> None:
        raise Killed

    crash_points.install(kill)
    try:
        writer = writer_of(tmp_path, numbers(1).schema, buffer_bytes_max=1)
        with pytest.raises(Killed):
            write_all(writer, numbers(500))
    finally:
        crash_points.install(None)
    assert leftovers(tmp_path)
    assert all(parse_file_name(str(path)) for path in leftovers(tmp_path))


def test_the_file_system_can_be_given(tmp_path: Path) -> None:
    plan = delta_plan("s3://nowhere/table", numbers(1).schema)
    writer = DataFileWriter(plan, NAMES, (LocalFileSystem(), str(tmp_path)))
    write_all(writer, numbers(10))
    writer.finish()
    assert read_ids(tmp_path) == list(range(10))
