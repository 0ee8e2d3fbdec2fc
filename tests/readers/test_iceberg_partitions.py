"""Manifests and files of Iceberg tables that are not read because of their partitions alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform, parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StructType, TimestampType
from tests.support.lakes import IcebergLake
from tests.writers.task import NAMES, write_as_task

from penstock import reader
from penstock.committers.contract import Batch, StreamKey
from penstock.committers.file_tables.manifest import build_manifest
from penstock.committers.iceberg.live_files import ManifestCache
from penstock.readers.conditions import Conditions
from penstock.readers.iceberg.partitions import PartitionRanges
from penstock.readers.predicates import UNKNOWN, Comparison, Predicate
from penstock.readers.table import TableScan
from penstock.writers.parquet.write_config import WriteConfig

UTC = timezone.utc
MOMENTS = [
    datetime(1, 1, 1, 5, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(2026, 11, 24, 1, 2, 3, 123_456, UTC),
    datetime(2026, 11, 24, 2, 2, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
]
DAYS = [moment.date() for moment in MOMENTS]
INTEGERS = [-(2**31), -11, -1, 0, 9, 10]
PRICES = [Decimal(price) for price in ("-7.01", "-0.50", "0.00", "0.01", "0.49", "7.00")]
TEXTS = ["", "a", "ab", "abc", "ab\U0010ffff", "\ud7ff\U0010ffffz"]
SHARES = [-math.inf, -0.0, 0.0, 1.5, math.inf, math.nan]
NOT_SKIPPED = ("ratio",)
"""pyiceberg reads its partitions with single precision."""
BYTES = [b"", b"\x00", b"a", b"ab", b"\x7f", b"\xff"]
COLUMNS: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "number": (pa.int64(), "identity", INTEGERS),
    "cut": (pa.int32(), "truncate[10]", INTEGERS),
    "price": (pa.decimal128(9, 2), "truncate[50]", PRICES),
    "kind": (pa.string(), "truncate[2]", TEXTS),
    "flag": (pa.bool_(), "identity", [True, False] * 3),
    "share": (pa.float32(), "identity", SHARES),
    "ratio": (pa.float64(), "identity", [0.1, *SHARES[1:]]),
    "amount": (pa.decimal128(38, 2), "identity", PRICES),
    "name": (pa.string(), "identity", TEXTS),
    "moment": (pa.timestamp("us", "UTC"), "identity", MOMENTS),
    "b_number": (pa.int32(), "bucket[64]", INTEGERS),
    "b_long": (pa.int64(), "bucket[64]", INTEGERS),
    "b_price": (pa.decimal128(9, 2), "bucket[64]", PRICES),
    "b_text": (pa.string(), "bucket[64]", TEXTS),
    "b_bytes": (pa.binary(), "bucket[64]", BYTES),
    "b_day": (pa.date32(), "bucket[64]", DAYS),
    "b_moment": (pa.timestamp("us", "UTC"), "bucket[64]", MOMENTS),
    "bytes": (pa.binary(), "identity", BYTES),
    "day": (pa.date32(), "identity", DAYS),
    "month": (pa.date32(), "month", DAYS),
    "year": (pa.date32(), "year", DAYS),
    "at": (pa.timestamp("us", "UTC"), "hour", MOMENTS),
    "on": (pa.timestamp("us", "UTC"), "day", MOMENTS),
    "since": (pa.timestamp("us"), "year", [moment.replace(tzinfo=None) for moment in MOMENTS]),
}


@pytest.fixture(scope="module", params=[1, 7], ids=["of a file", "of a manifest"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TableScan:
    """One row in each file, all of whose columns are partition fields; one has only NULL. The files are in so
    many manifests.
    """
    lake = IcebergLake(tmp_path_factory.mktemp("lake"))
    schema = pa.schema([(name, kind) for name, (kind, _, _) in COLUMNS.items()])
    lake.create(schema, {"write.metadata.metrics.default": "none"})
    with lake.load().update_spec() as update:
        for name, (_, transform, _) in COLUMNS.items():
            update.add_field(name, parse_transform(transform), f"of_{name}")
    values = {name: [*some, None] for name, (_, _, some) in COLUMNS.items()}
    rows = pa.table(values, schema)
    sink = lake.sink()
    for number in range(request.param):
        written = sink.open_table()
        planned = written.plan_batch(schema, "append", number)
        assert isinstance(planned.writers, WriteConfig)
        some = rows if request.param == 1 else rows.slice(number, 1)
        files = write_as_task(planned.writers, some, replace(NAMES, attempt=number))
        batch = Batch(StreamKey("q", sink.table_uri), number, "0" * 64)
        written.commit(build_manifest(batch, planned.content.with_files(files)))
    return reader.open_table("penstock.iceberg", lake.options)


def conditions(name: str, table: TableScan) -> Iterator[Predicate]:
    made = Conditions(table.reader.schema([name]))
    yield from (made.is_null([name]), made.is_null([name], negated=True))
    for number, value in enumerate(COLUMNS[name][2]):
        for operator in ("=", ("!=", "<", "<=", ">", ">=")[number % 5]):
            yield made.compare([name], operator, value)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_condition_finds_what_a_scan_finds(
    name: str, table: TableScan, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests: list[str] = []
    real = ManifestCache.read

    def read(cache: ManifestCache, io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
        manifests.append(manifest.manifest_path)
        return real(cache, io, manifest)

    monkeypatch.setattr(ManifestCache, "read", read)
    (rows,) = table.to_reader().read_all().combine_chunks().to_batches()
    assert rows.num_rows == 7
    for where in conditions(name, table):
        expected = pc.sum(where.mask(rows)).as_py() or 0
        manifests.clear()
        scan = table.and_where([where])
        files = len(list(scan.files()))
        if isinstance(where, Comparison) and where.operator == "=" and name not in NOT_SKIPPED:
            assert files < 5, where
            assert len(manifests) < 5, where
        assert scan.to_reader().read_all().num_rows == expected, where


def file_in(value: int | None) -> DataFile:
    file = DataFile.from_args(partition=Record(value))
    file.spec_id = 0
    return file


def test_times_of_old_writers_may_be_before_their_partition() -> None:
    """Java once rounded them up."""
    schema = Schema(NestedField(1, "at", TimestampType()))
    ranges = PartitionRanges(schema, {0: PartitionSpec(PartitionField(1, 1000, DayTransform(), "day"))})
    known = ranges.narrow(UNKNOWN, ("at",), file_in(0))
    assert (known.low, known.high) == (-86_400_000_000, 86_400_000_000 - 1)


def test_a_field_of_a_struct_is_also_null_where_the_struct_is() -> None:
    struct = NestedField(1, "s", StructType(NestedField(2, "n", LongType())))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "n"))
    ranges = PartitionRanges(Schema(struct), {0: spec})
    for value in (None, 5):
        known = ranges.narrow(UNKNOWN, ("s", "n"), file_in(value))
        assert (known.may_be_null, known.may_be_value, known.low) == (True, True, value)
