"""The tables that Java wrote are unchanged after they were moved: other tests rely on it."""

from __future__ import annotations

import datetime as dt
import struct
import tarfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
from tests.support.foreign_iceberg import ARCHIVES, NAMES, data_files, load, partition_rows
from tests.support.readers import duckdb_with_iceberg, iceberg_rows


@pytest.mark.parametrize("name", NAMES)
def test_no_path_of_the_original_folder_is_left(tmp_path: Path, name: str) -> None:
    table = load(name, tmp_path)
    made_in = b"foreign-iceberg-"
    with duckdb_with_iceberg() as connection:
        for file in (tmp_path / "foreign" / name / "metadata").glob("*.avro"):
            rows = connection.execute(f"SELECT r::VARCHAR FROM read_avro('{file}') AS r").fetchall()
            assert not [row for row in rows if made_in.decode() in str(row)]
    for file in (tmp_path / "foreign" / name).rglob("*"):
        assert not file.is_file() or file.suffix == ".avro" or made_in not in file.read_bytes(), file
    assert all(file.file_path.startswith(f"file://{tmp_path}") for file in data_files(table))
    assert table.location() == f"file://{tmp_path}/foreign/{name}"
    assert iceberg_rows(table.metadata_location)


def test_a_moved_table_takes_rows(tmp_path: Path) -> None:
    table = load("evolved_spec", tmp_path)
    ts = dt.datetime(2026, 1, 1, 4, tzinfo=dt.timezone.utc)
    table.append(
        pa.table(
            {"id": [4], "name": ["d"], "ts": pa.array([ts], pa.timestamp("us", "UTC"))},
        )
    )
    assert iceberg_rows(table.metadata_location, "id") == [(1,), (2,), (3,), (4,)]


def test_the_metadata_has_the_sizes_of_the_files(tmp_path: Path) -> None:
    table = load("position_deletes", tmp_path)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    for manifest in snapshot.manifests(table.io):
        assert manifest.manifest_length == size(manifest.manifest_path)
        for entry in manifest.fetch_manifest_entry(table.io):
            assert entry.data_file.file_size_in_bytes == size(entry.data_file.file_path)


def size(location: str) -> int:
    return Path(location.removeprefix("file://")).stat().st_size


def test_partitions_are_those_that_java_computed(tmp_path: Path) -> None:
    """The hashes of 34, 14.20 and 'iceberg' are those of the specification, appendix B."""
    bucket = {row["id"]: partition for row, partition, _ in partition_rows(load("bucket", tmp_path))}
    of_int, of_long, of_decimal, _, of_string, *_ = bucket[1]
    hashes = (2017239379, 2017239379, -500754589, 1210000089)
    assert (of_int, of_long, of_decimal, of_string) == tuple(
        (hashed & 0x7FFFFFFF) % buckets for hashed, buckets in zip(hashes, (16, 16, 7, 100), strict=True)
    )
    truncate = {row["id"]: partition for row, partition, _ in partition_rows(load("truncate", tmp_path))}
    assert truncate[3] == (-10, -10, Decimal("-0.50"), Decimal("-0.0000000050"), "a", b"\xff")
    day = {row["id"]: partition for row, partition, _ in partition_rows(load("day", tmp_path))}
    assert day[3] == (-1, -1, -1)
    assert day[8] == (None, None, None)


def test_a_row_comes_with_the_spec_that_it_was_written_under(tmp_path: Path) -> None:
    rows = sorted(partition_rows(load("evolved_spec", tmp_path)), key=lambda row: row.row["id"])
    assert [(row.spec_id, row.partition) for row in rows] == [
        (0, ("a", 20454)),
        (1, (20454,)),
        (3, (490899, 3)),
    ]


def test_a_double_in_a_partition_survives_the_move(tmp_path: Path) -> None:
    assert partition_rows(load("identity", tmp_path))[0].partition[4] == -0.1


def test_pyicebergs_compiled_decoder_still_loses_half_of_a_double() -> None:
    """Once it does not, `exact_doubles` has nothing to do any more."""
    assert CythonBinaryDecoder(struct.pack("<d", -0.1)).read_double() == -0.10000000149011612


def test_an_archive_has_no_checksums_of_hadoop() -> None:
    for archive in ARCHIVES.iterdir():
        with tarfile.open(archive) as tar:
            assert not [name for name in tar.getnames() if name.endswith(".crc")]
