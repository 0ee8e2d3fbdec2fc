"""Tables on S3 and Azure, from a real Spark without a jar: the options reach executors and driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
from pyiceberg.io import ARROW_FILE_IO, PY_IO_IMPL
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession
from servers.azure import ACCOUNT, CONTAINER, azure_names, azure_options, azure_properties
from servers.s3 import BUCKET, s3_client, s3_properties
from tests.support.id_stream import IdStream
from tests.support.lakes import IcebergLake

pytestmark = pytest.mark.spark


def delta_options(storage: dict[str, str]) -> dict[str, str]:
    return {"path": f"s3a://{BUCKET}/table", **{f"storage.{key}": value for key, value in storage.items()}}


class IcebergInStore(IcebergLake):
    """Its catalog is in SQLite on the local disk."""

    named: dict[str, str]

    def __init__(self, warehouse: Path, location: str, properties: Mapping[str, str]) -> None:
        super().__init__(warehouse)
        catalog = {"type": "sql", "uri": f"sqlite:///{warehouse}.sqlite", "warehouse": location}
        named = {f"catalog.{name}": value for name, value in {**catalog, **properties}.items()}
        object.__setattr__(self, "named", named)  # the dataclass is frozen

    @property
    def options(self) -> dict[str, str]:
        return {"table": self.table, "catalog": "local", **self.named}


@pytest.fixture
def s3_ids(spark: SparkSession, tmp_path: Path, s3: dict[str, str]) -> IdStream:
    location, properties = f"s3://{BUCKET}/warehouse", s3_properties(s3)
    table = IcebergInStore(tmp_path / "warehouse", location, properties)
    return IdStream(spark, tmp_path, table)


@pytest.fixture
def azure_ids(spark: SparkSession, tmp_path: Path, azure: str) -> IdStream:
    location = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/warehouse"
    table = IcebergInStore(tmp_path / "warehouse", location, azure_properties(azure))
    return IdStream(spark, tmp_path, table)


def run_with_a_replay(ids: IdStream, options: dict[str, str], partitioning: str) -> None:
    ids.add_files(2)
    ids.run(None, **options, **{partitioning: "day"})
    ids.forget_commit(1)
    ids.add_files(1)
    ids.run(None, **options)


def keys(storage: dict[str, str], prefix: str, suffix: str) -> list[str]:
    listing = s3_client(storage).list_objects_v2(Bucket=BUCKET, Prefix=prefix)
    return [found["Key"] for found in listing["Contents"] if found["Key"].endswith(suffix)]


def test_a_stream_into_delta_on_s3_and_its_replay_deliver_each_row_once(
    delta_ids: IdStream, s3: dict[str, str]
) -> None:
    run_with_a_replay(delta_ids, delta_options(s3), "partitionBy")

    rows = pl.scan_delta(f"s3://{BUCKET}/table", storage_options=s3).collect()
    assert sorted(rows["id"].to_list()) == list(range(300))
    assert set(rows["day"]) == {"d0", "d1"}


def test_a_stream_into_iceberg_on_s3_and_its_replay_deliver_each_row_once(
    s3_ids: IdStream, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata on S3 are read by pyiceberg, the rows by polars."""
    run_with_a_replay(s3_ids, {}, "partitionSpec")

    newest = max(keys(s3, "warehouse/", ".metadata.json"))
    options = {
        key.removeprefix("catalog."): value
        for key, value in s3_ids.table.options.items()
        if key.startswith("catalog.s3.")
    }
    table = pl.scan_iceberg(f"s3://{BUCKET}/{newest}", reader_override="native", storage_options=options)
    rows = table.collect()
    assert sorted(rows["id"].to_list()) == list(range(300))
    assert set(rows["day"]) == {"d0", "d1"}
    assert len(keys(s3, "warehouse/", ".parquet")) == 2 * 3


@pytest.mark.campaign
def test_a_stream_into_delta_on_azure_and_its_replay_deliver_each_row_once(
    delta_ids: IdStream, azure: str
) -> None:
    storage = azure_options(azure)
    uri = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/delta/table"
    options = {"path": uri, **{f"storage.{name}": value for name, value in storage.items()}}
    run_with_a_replay(delta_ids, options, "partitionBy")

    rows = pl.scan_delta(f"az://{CONTAINER}/delta/table", storage_options=storage).collect()
    assert sorted(rows["id"].to_list()) == list(range(300))
    assert set(rows["day"]) == {"d0", "d1"}


@pytest.mark.campaign
def test_a_stream_into_iceberg_on_azure_and_its_replay_deliver_each_row_once(
    azure_ids: IdStream, azure: str
) -> None:
    """The metadata are read by pyiceberg, the rows by polars."""
    run_with_a_replay(azure_ids, {}, "partitionSpec")

    names = azure_names(azure, "warehouse/")
    newest = max(name for name in names if name.endswith(".metadata.json"))
    root = f"abfss://{CONTAINER}/"
    table = StaticTable.from_metadata(root + newest, {**azure_properties(azure), PY_IO_IMPL: ARROW_FILE_IO})
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["total-records"] == "300"
    files = [name for name in names if name.endswith(".parquet")]
    assert len(files) == 2 * 3
    rows = pl.concat(pl.read_parquet(root + name, storage_options=azure_options(azure)) for name in files)
    assert sorted(rows["id"].to_list()) == list(range(300))


def test_wrong_credentials_for_delta_are_an_error_that_shows_no_secret(
    delta_ids: IdStream, s3: dict[str, str]
) -> None:
    options = {**delta_options(s3), "storage.AWS_SECRET_ACCESS_KEY": "hunter2"}
    delta_ids.add_files(1)
    message = delta_ids.fails_with(None, **{**options, "path": "s3://no-such-bucket/table"})

    assert "no-such-bucket" in message
    assert "hunter2" not in message


def test_wrong_credentials_for_iceberg_are_an_error_that_shows_no_secret(s3_ids: IdStream) -> None:
    wrong = {"catalog.warehouse": "s3://no-such-bucket/warehouse", "catalog.s3.secret-access-key": "hunter2"}
    s3_ids.add_files(1)
    message = s3_ids.fails_with(None, **wrong)

    assert "no-such-bucket" in message
    assert "hunter2" not in message
