"""Whatever values the tasks let pass, the commit takes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.conformance.harnesses import DeltaHarness, DuckLakeHarness, HudiHarness, IcebergHarness
from tests.support.ducklakes import sqlite_lake
from tests.support.files import FilesHarness
from tests.support.plans import with_ids

from penstock.committers.contract import Batch, DataFile, PartitionField, StreamKey
from penstock.committers.ducklake.values import check_partition_values
from penstock.committers.errors import SchemaMismatchError
from penstock.committers.file_tables.file_manifests import FileManifests
from penstock.committers.file_tables.manifest import LakeManifest, build_manifest, decode
from penstock.committers.store.sql import open_store
from penstock.testing.conformance import DestinationHarness, Query
from penstock.testing.conformance.query import payloads
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.ducklake.table_format import DuckLakeFormat
from penstock.writers.hudi.table_format import HudiFormat
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.parquet.partition_check import split_rows
from penstock.writers.parquet.table_format import TableFormat
from penstock.writers.parquet.write_config import WriteConfig

PIECES = (
    "..",
    ".",
    "%",
    "2e",
    "2E",
    "25",
    "/",
    "\0",
    "=",
    "p",
    "NULL",
    "\n",
    "__HIVE_DEFAULT_PARTITION__",
    "x" * 99,
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)
NAMES = ("p", "q")
FIELDS = tuple([PartitionField(name, (name,), "identity") for name in NAMES])
FORMATS: Mapping[str, TableFormat] = {
    "delta": DeltaFormat(NAMES),
    "iceberg": IcebergFormat(FIELDS),
    "ducklake": DuckLakeFormat(NAMES),
    "hudi": HudiFormat("20260101000000000", NAMES),
    "hudi, values alone": HudiFormat("20260101000000000", NAMES, is_hive_style=False),
    "hudi, not encoded": HudiFormat("20260101000000000", NAMES, encodes_paths=False),
}
BATCH = Batch(StreamKey("q", "/t"), 0, "")


@settings(max_examples=40, deadline=None, database=None)
@given(p=TEXTS, q=TEXTS | st.none())
@example(p="%2e%2e", q="a")
@example(p="%252E", q="%2e%252e")
@example(p="a\0b", q="a")
def test_partitions_that_the_tasks_let_pass_are_read_from_a_manifest(p: str, q: str | None) -> None:
    for kind in FORMATS:
        _check_manifest(kind, p, q)


def _check_manifest(kind: str, p: str, q: str | None) -> None:
    rows = pa.table({"p": pa.array([p], pa.string()), "q": pa.array([q], pa.string()), "id": [1]})
    config = WriteConfig("/t", {}, with_ids(rows.schema), FORMATS[kind])
    try:
        (part,) = split_rows(config, rows, "here")
    except SchemaMismatchError:
        return
    path = config.table_format.data_path(part.values, "penstock-0.zstd.parquet")
    file = DataFile(path, 1, 1, part.values, "")
    content = LakeManifest(kind, "append", "id", 0, "{}", (), NAMES, (file,))
    assert decode(build_manifest(BATCH, content)).files == (file,)
    assert FileManifests(kind).decode(FileManifests(kind).encode(BATCH, [(file,)])) == (file,)
    if kind == "ducklake":
        check_partition_values([file], "the batch")


@pytest.mark.parametrize("location", ["/t", "s3://bucket/t"])
def test_a_path_that_is_too_long_for_the_storage_is_a_bad_value(location: str) -> None:
    names = tuple([f"p{number}" for number in range(20)])
    rows = pa.table({**{name: ["x" * 240] for name in names}, "id": [1]})
    for count, is_bad in ((2, False), (4, location != "/t"), (20, True)):
        config = WriteConfig(location, {}, rows.schema, DeltaFormat(names[:count]))
        if is_bad:
            with pytest.raises(SchemaMismatchError, match="too long for the storage"):
                list(split_rows(config, rows, "here"))
        else:
            assert len(list(split_rows(config, rows, "here"))) == 1


# Real commits -----------------------------------------------------------------------------------------

VALUES: Mapping[pa.DataType, st.SearchStrategy[object]] = {
    pa.string(): TEXTS,
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    pa.timestamp("us", "UTC"): st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**63), -9223372022400000000),
}
STORED = {pa.date32(): pa.int32(), pa.timestamp("us", "UTC"): pa.int64()}
PARTITIONS = {"text": pa.string(), "number": pa.int64(), "flag": pa.bool_(), "day": pa.date32()}
HARNESSES: Mapping[str, Callable[[Path], DestinationHarness]] = {
    "delta": DeltaHarness,
    "iceberg": IcebergHarness,
    "hudi": HudiHarness,
    "files": FilesHarness,
    "ducklake": lambda folder: DuckLakeHarness(folder, sqlite_lake(folder).catalog),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, pa.Table]:
    """A partition column, and rows with values of each type."""
    columns = {**PARTITIONS, "instant": pa.timestamp("us", "UTC")}
    count = 12
    drawn = {
        name: pa.array(
            draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count)), STORED.get(kind, kind)
        ).cast(kind)
        for name, kind in columns.items()
    }
    return draw(st.sampled_from(list(PARTITIONS))), pa.table({"id": pa.array(range(count)), **drawn})


@pytest.mark.slow
@pytest.mark.parametrize("kind", HARNESSES)
@settings(max_examples=2, deadline=None, database=None, derandomize=True)
@given(case=tables())
def test_rows_that_the_tasks_let_pass_are_committed(kind: str, case: tuple[str, pa.Table]) -> None:
    column, rows = case
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/store.db") as store:
        harness = HARNESSES[kind](Path(folder))
        options = {**harness.options_by(column), "badRows": "drop"}
        query = Query(harness, options=options, store=store)
        messages = query.run(store, query.batch(0), rows)

        found = harness.ids()
        assert set(found) <= set(rows["id"].to_pylist())
        assert (
            len(set(found)) == len(found) == sum(file.rows for files in payloads(messages) for file in files)
        )
        assert not harness.uncommitted()
