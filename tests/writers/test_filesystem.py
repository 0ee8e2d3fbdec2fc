"""The table's file system: the local disk, S3 and Azure under the table library's own options."""

from __future__ import annotations

import uuid
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from servers.azure import ACCOUNT, azure_names, azure_options
from servers.s3 import s3_names, s3_properties
from tests.support.plans import delta_plan
from tests.writers.task import commit, write_as_task

from penstock.committers.contract import PartitionField
from penstock.writers.delta.filesystem import open_filesystem
from penstock.writers.iceberg.filesystem import open_iceberg_filesystem
from penstock.writers.iceberg.table_format import IcebergFormat
from penstock.writers.local_path import local_path
from penstock.writers.parquet.write_config import WriteConfig

VALUES = ["a b", "x/y", "a%20b", "é€😀", "a=b", "#?&;", "\x01", "+", "~", None, "{}[]^|<>`!$()*", "\\"]


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/lake/t", "/lake/t"),
        ("file:///lake/t", "/lake/t"),
        ("file:/lake/t", "/lake/t"),
        ("file:///lake/a%20b", "/lake/a b"),
        ("s3://bucket/t", None),
        ("abfss://container@account.dfs.core.windows.net/t", None),
    ],
)
def test_local_tables_have_a_path(uri: str, path: str | None) -> None:
    assert local_path(uri) == path


def test_a_relative_path_starts_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    filesystem, root = open_filesystem("lake/t", {})
    assert isinstance(filesystem, LocalFileSystem)
    assert root == str(tmp_path / "lake/t")


def write_table(uri: str, rows: pa.Table, options: dict[str, str]) -> None:
    files = write_as_task(delta_plan(uri, rows.schema, options, partition_by=("p",)), rows)
    commit(uri, rows.schema, files, partition_by=["p"], storage_options=options)


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_partitioned_files_on_s3_are_read_through_the_table(scheme: str, s3: dict[str, str]) -> None:
    uri = f"{scheme}://lake/{scheme}/a%20table%3D"
    check_that_odd_names_are_read(uri, s3)
    assert len(s3_names(s3, f"{scheme}/a table=/p")) == len(VALUES)


@pytest.mark.parametrize("root", ["az://lake", f"abfss://lake@{ACCOUNT}.dfs.core.windows.net"])
def test_partitioned_files_on_azure_are_read_through_the_table(root: str, azure: str) -> None:
    folder = f"{uuid.uuid4()}/a table="
    check_that_odd_names_are_read(f"{root}/{quote(folder)}", azure_options(azure))
    assert len(azure_names(azure, f"{folder}/p")) == len(VALUES)


def check_that_odd_names_are_read(uri: str, options: dict[str, str]) -> None:
    """Odd characters in addresses and directories mean the same to the writer, the log and the readers."""
    rows = pa.table({"id": range(len(VALUES)), "p": VALUES})
    write_table(uri, rows, options)
    found = DeltaTable(uri, storage_options=options).to_pyarrow_table()
    assert found.sort_by("id").select(["id", "p"]).to_pylist() == rows.to_pylist()


def test_polars_reads_plain_partition_values_on_s3(s3: dict[str, str]) -> None:
    """On object stores polars does not find paths with any character that URLs escape."""
    rows = pa.table({"id": [1, 2, 3], "p": ["JFK", "2024-01-01", None]})
    uri = "s3://lake/plain"
    write_table(uri, rows, s3)
    frame = pl.scan_delta(uri, storage_options=s3)
    assert frame.sort("id").select("id", "p").collect().to_dicts() == rows.to_pylist()


# Iceberg --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/wh/db/t/data", "/wh/db/t/data"),
        ("file:///wh/db/t/data", "/wh/db/t/data"),
        ("file:/wh/db/t/data", "/wh/db/t/data"),
        ("file:///wh/a%20b/é #?/data", "/wh/a%20b/é #?/data"),
        ("/wh:x/t", "/wh:x/t"),
    ],
)
def test_locations_of_iceberg_tables_are_no_urls(location: str, path: str) -> None:
    filesystem, root = open_iceberg_filesystem(location, {})
    assert isinstance(filesystem, LocalFileSystem)
    assert root == path


def test_iceberg_files_on_s3_come_back(s3: dict[str, str]) -> None:
    """Through the Iceberg library's own file I/O, by its own properties."""
    properties = s3_properties(s3)
    ids = {"PARQUET:field_id": "1"}
    schema = pa.schema([pa.field("v", pa.string(), metadata=ids)])
    table_format = IcebergFormat((PartitionField("p q", ("v",), "identity"),), is_object_storage_layout=True)
    plan = WriteConfig("s3://lake/wh/db/t/data", properties, schema, table_format)
    files = write_as_task(plan, pa.table({"v": VALUES}))
    assert len(s3_names(s3, "wh/db/t/data/")) == len(files) == len(VALUES)
    by_polars = [
        pl.read_parquet(f"{plan.location}/{file.path}", storage_options=s3)["v"].to_list() for file in files
    ]
    assert sorted(map(repr, by_polars)) == sorted(repr([value]) for value in VALUES)
    by_pyiceberg = PyArrowFileIO(properties).new_input(f"{plan.location}/{files[0].path}")
    assert len(by_pyiceberg) == files[0].size_bytes
