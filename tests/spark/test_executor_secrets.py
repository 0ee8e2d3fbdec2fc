"""Executors get neither the catalog nor what opens it: not in what is sent to them, not in their memory.

Spark pickles a batch writer twice, inside the function for the executors and by itself for the commit.
`BatchWriter` builds on that order, so a change of it fails here.
"""

from __future__ import annotations

import gc
import json
import pickle
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import LongType, StructField, StructType
from tests.spark.formats import IcebergLakeTable
from tests.spark.id_stream import IdStream
from tests.tables import rows

import penstock
from penstock.datasource.batch_plan import BatchPlan, CommittableMessage
from penstock.datasource.batch_writer import BatchWriter
from penstock.datasource.task import TaskAttempt

pytestmark = pytest.mark.spark

SCHEMA = StructType([StructField("id", LongType())])
OF_CATALOG = ("credential", "token", "uri", "header.authorization")
SECRET_LENGTH = 36
OF_FILES = "s3.access-key-id"
"""Tasks need it: the scan must find it, or it finds nothing."""


@pytest.fixture
def secrets() -> dict[str, str]:
    return {key: f"{uuid.uuid4()}" for key in (*OF_CATALOG, OF_FILES)}


@pytest.fixture
def options(tmp_path: Path, secrets: dict[str, str]) -> dict[str, str]:
    """A catalog that takes any property."""
    uri = f"sqlite:///{tmp_path}/{secrets['uri']}.sqlite"
    properties = {**secrets, "type": "sql", "uri": uri, "warehouse": f"file://{tmp_path}/warehouse"}
    given = {f"catalog.{key}": value for key, value in properties.items()}
    return {"table": "lake.ids", "catalog": "local", **given}


def shipped(what: object) -> bytes:
    """As Spark pickles it."""
    pickled: bytes = cloudpickle.dumps(what)  # type: ignore[no-untyped-call]
    return pickled


def test_what_goes_to_executors_first_has_no_secret_of_the_catalog(
    options: dict[str, str], secrets: dict[str, str]
) -> None:
    writer = penstock.IcebergDataSource(options).writer(SCHEMA, overwrite=False)
    assert isinstance(writer, BatchWriter)
    to_executors, to_commit = shipped(lambda: writer), shipped(writer)

    assert [key for key, secret in secrets.items() if secret.encode() in to_executors] == [OF_FILES]
    assert all(secret.encode() in to_commit for secret in secrets.values())


def test_a_stream_writer_pickles_without_a_secret(options: dict[str, str], secrets: dict[str, str]) -> None:
    source = pickle.loads(pickle.dumps(penstock.IcebergDataSource(options)))
    writer = source.streamWriter(SCHEMA, overwrite=False)  # as the commit process has it: without a plan
    assert not [key for key, secret in secrets.items() if secret.encode() in shipped(writer)]


# In real tasks ----------------------------------------------------------------------------------------


class WatchedDataSource(penstock.IcebergDataSource):
    """Its tasks look for secrets in their own memory, and report what they find."""

    @classmethod
    def name(cls) -> str:
        return "watched.iceberg"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        writer = super().streamWriter(schema, overwrite)
        self._watch(writer)
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = super().writer(schema, overwrite)
        self._watch(writer)
        return writer

    def _watch(self, writer: Any) -> None:
        if writer._plan is not None:
            writer._plan = WatchedPlan(writer._plan, self.options["catalog.report"])


class WatchedPlan:
    """A plan that scans the process before it writes.

    The secrets come in a file, each written backwards: here, the scan would find itself.
    """

    def __init__(self, plan: BatchPlan, folder: str) -> None:
        self._plan = plan
        self._folder = folder

    def check_task(self, task: TaskAttempt) -> None:
        self._plan.check_task(task)

    def write(self, batches: Iterable[Any], task: TaskAttempt) -> CommittableMessage:
        backwards = json.loads(Path(self._folder, "secrets").read_text())
        found = {key for text in texts() for key in backwards if backwards[key][::-1] in text}
        Path(self._folder, f"task-{task.attempt}").write_text(json.dumps(sorted(found)))
        return self._plan.write(batches, task)


def texts() -> set[str]:
    """Every text that an object in this process holds, if it is long enough to have a secret in it.

    The garbage collector does not track dicts and tuples of mere texts: they are looked into one by one.
    """
    held: set[str | bytes] = set()
    gc.unfreeze()  # what was there when the process had done its first work is not among its objects
    items = gc.get_referents(*gc.get_objects())
    while items:
        held |= {item for item in items if type(item) in (str, bytes) and len(item) >= SECRET_LENGTH}
        untracked = [item for item in items if type(item) in (dict, tuple) and not gc.is_tracked(item)]
        items = gc.get_referents(*untracked)
    return {item if isinstance(item, str) else item.decode("latin-1") for item in held}


@pytest.fixture
def reports(spark: SparkSession, tmp_path: Path, secrets: dict[str, str], options: dict[str, str]) -> Path:
    spark.dataSource.register(WatchedDataSource)
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "secrets").write_text(json.dumps({key: secret[::-1] for key, secret in secrets.items()}))
    options["catalog.report"] = str(folder)
    return folder


def found(reports: Path) -> list[list[str]]:
    return [json.loads(report.read_text()) for report in reports.glob("task-*")]


def test_tasks_of_a_batch_write_hold_no_secret_of_the_catalog(
    spark: SparkSession, options: dict[str, str], reports: Path
) -> None:
    ids = spark.range(0, 100, numPartitions=2)
    ids.write.format("watched.iceberg").mode("append").options(**options).save()

    assert found(reports) == [[OF_FILES]] * 2


def test_tasks_of_a_stream_hold_no_secret_of_the_catalog_and_no_file_has_it(
    iceberg_ids: IdStream, options: dict[str, str], reports: Path, secrets: dict[str, str], tmp_path: Path
) -> None:
    iceberg_ids.add_files(2)
    writer = iceberg_ids.rows().writeStream.format("watched.iceberg").options(**options)
    writer = writer.option("checkpointLocation", str(iceberg_ids.checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()

    assert found(reports) == [[OF_FILES]] * 2
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [key for key, secret in secrets.items() if any(secret.encode() in file for file in files)]


def test_the_rows_of_a_watched_write_arrive(
    spark: SparkSession, iceberg_table: IcebergLakeTable, reports: Path
) -> None:
    """Or what the tasks report would be of no write at all."""
    (reports / "secrets").write_text("{}")
    options = {**iceberg_table.options, "catalog.report": str(reports)}
    uri = f"sqlite:///{iceberg_table.warehouse}/catalog.sqlite"
    iceberg_table.warehouse.mkdir()
    options |= {"catalog": "penstock", "catalog.type": "sql", "catalog.uri": uri}
    options["warehouse"] = f"file://{iceberg_table.warehouse}"
    ids = spark.range(0, 10, numPartitions=1)
    ids.write.format("watched.iceberg").mode("append").options(**options).save()

    assert rows(iceberg_table.on_disk, "id") == [(number,) for number in range(10)]
