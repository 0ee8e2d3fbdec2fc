"""Locations of the store and the checkpoint, and normalized table addresses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql.types import DoubleType, LongType, StructField, StructType
from servers.s3 import BUCKET, s3_client, s3_server

from penstock import ConfigurationError, SchemaMismatchError
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.planning.batch_plan import BatchPlan
from penstock.datasource.planning.plan import open_checkpoint, plan_batch_write, store_url
from penstock.datasource.query import Query
from penstock.writers.delta.table_format import DeltaFormat
from penstock.writers.parquet.write_config import WriteConfig


def test_the_store_is_in_a_local_checkpoint(tmp_path: Path) -> None:
    for location in (f"{tmp_path}/cp", f"file://{tmp_path}/cp", f"file:{tmp_path}/cp"):
        options = DeltaOptions(path="/t", checkpoint_location=location)
        assert store_url(options) == f"sqlite:///{tmp_path}/cp/penstock.sqlite"


@pytest.mark.parametrize("location", ["s3a://bucket/cp", "hdfs://host/cp", "abfss://c@a/cp"])
def test_a_remote_checkpoint_without_a_store_is_refused_with_a_remedy(location: str) -> None:
    with pytest.raises(ConfigurationError, match='option\\("store", "postgresql'):
        store_url(DeltaOptions(path="/t", checkpoint_location=location))


def test_a_remote_checkpoint_with_a_store_is_read_with_the_storage_options() -> None:
    files = {
        "metadata": json.dumps({"id": "q"}),
        "offsets/9": "v1\n{}\n7",
        "offsets/10": 'v1\n{}\n{"logOffset":0}',
        "sources/0/0": 'v1\n{"path":"a","timestamp":1,"batchId":0}',
    }
    with s3_server() as storage:
        client = s3_client(storage)
        for name, text in files.items():
            client.put_object(Bucket=BUCKET, Key=f"cp/{name}", Body=text.encode())
        options = DeltaOptions(
            path="/t",
            checkpoint_location=f"s3a://{BUCKET}/cp",
            store="postgresql+psycopg://u@h/d",
            storage_options=storage,
        )
        running = open_checkpoint(Query.of(DeltaSink(options))).running_batch()

    assert (running.query_id, running.batch_id) == ("q", 10)


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("/lake/t/", "/lake/t"),
        ("file:///lake/t", "/lake/t"),
        ("/lake/../lake//t", "/lake/t"),
        ("s3a://bucket/t/", "s3://bucket/t"),
    ],
)
def test_one_table_has_one_address(path: str, uri: str) -> None:
    """Otherwise a query that is started with another notation would be another stream."""
    assert DeltaSink(DeltaOptions(path=path)).table_uri == uri


def plan(table: Path, **options: str) -> BatchPlan:
    schema = StructType([StructField("id", LongType()), StructField("Price", DoubleType())])
    sink = DeltaSink(DeltaOptions.parse({"path": str(table), **options}))
    return plan_batch_write(sink, schema, overwrite=False)


def test_a_table_partitioned_by_a_double_is_refused(tmp_path: Path) -> None:
    """Not only if the query asks for it: the table of others may be partitioned so already."""
    columns = [Field("id", PrimitiveType("long")), Field("Price", PrimitiveType("double"))]
    DeltaTable.create(str(tmp_path / "t"), Schema(columns), partition_by=["Price"])

    with pytest.raises(SchemaMismatchError, match="'Price' is double"):
        plan(tmp_path / "t")


def test_columns_in_options_are_found_without_case_as_in_spark(tmp_path: Path) -> None:
    writers = plan(tmp_path / "t", partitionby="ID", sortwithin="price").writers
    assert writers is not None
    files = writers.parts[0].writers

    assert isinstance(files, WriteConfig)
    assert isinstance(files.table_format, DeltaFormat)
    assert files.table_format.partition_by == ("id",)
    assert [field.column for field in files.sort] == [("Price",)]
