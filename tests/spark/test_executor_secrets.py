"""Executors get no secret of the catalog, neither in a pickle nor in their memory.

Spark pickles a batch writer inside the function for the executors and by itself for the commit. No pickle of
it has a secret, in whatever order and however often it is made.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import stat
import tempfile
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import LongType, StructField, StructType
from tests.spark.watched_plan import WatchedPlan
from tests.support.backlogs import wait_until
from tests.support.id_stream import IdStream
from tests.support.lakes import IcebergLake

import penstock
from penstock.datasource.spark.batch_writer import BatchWriter
from penstock.datasource.spark.task import TaskAttempt

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
    return cloudpickle.dumps(what)  # type: ignore[no-untyped-call]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_no_pickle_of_a_batch_writer_has_a_secret_of_the_catalog(
    options: dict[str, str], secrets: dict[str, str], temporary: Path
) -> None:
    """Nor has the file on the driver, which nobody else may read."""
    writer = penstock.IcebergDataSource(options).writer(SCHEMA, overwrite=False)
    assert isinstance(writer, BatchWriter)
    again = pickle.loads(shipped(writer))
    for pickled in (
        shipped(writer),
        shipped(lambda: writer),
        shipped(writer),
        shipped(again),
        repr(again).encode(),
    ):
        assert [key for key, secret in secrets.items() if secret.encode() in pickled] in ([OF_FILES], [])
    (file,) = temporary.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not [key for key, secret in secrets.items() if secret.encode() in file.read_bytes()]
    assert again._sink.get().catalog.properties["token"] == secrets["token"]


@pytest.mark.parametrize("damage", ["removed", "cut off", "of another user"])
def test_a_batch_writer_without_its_file_does_not_commit(
    options: dict[str, str], temporary: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = pickle.loads(shipped(penstock.IcebergDataSource(options).writer(SCHEMA, overwrite=False)))
    (file,) = temporary.iterdir()
    if damage == "removed":
        file.unlink()
    elif damage == "cut off":
        file.write_bytes(file.read_bytes()[:-1])
    else:
        monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(penstock.PenstockError, match=f"{file}.*Nothing was committed"):
        writer.commit([])


def test_a_stream_writer_pickles_without_a_secret(options: dict[str, str], secrets: dict[str, str]) -> None:
    source = pickle.loads(pickle.dumps(penstock.IcebergDataSource(options)))
    writer = source.streamWriter(SCHEMA, overwrite=False)  # as the commit process has it: without a plan
    assert not [key for key, secret in secrets.items() if secret.encode() in shipped(writer)]


# In real tasks ----------------------------------------------------------------------------------------


class WatchedDataSource(penstock.IcebergDataSource):
    """A data source whose tasks report the secrets in their memory."""

    format = "watched.iceberg"

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
            writer._plan = WatchedPlan(writer._plan, partial(report_secrets, self.options["catalog.report"]))


def report_secrets(folder: str, task: TaskAttempt) -> None:
    """Report the secrets in the memory of this process. They are in a file, written backwards: otherwise the
    scan would find its own input.
    """
    backwards = json.loads(Path(folder, "secrets").read_text())
    found = {key for text in texts() for key in backwards if backwards[key][::-1] in text}
    Path(folder, f"task-{task.attempt}").write_text(json.dumps(sorted(found)))


def texts() -> set[str]:
    """Return every string in this process that is long enough for a secret.

    The garbage collector does not track dicts and tuples of strings: they are searched one by one.
    """
    held: set[str | bytes] = set()
    gc.unfreeze()  # objects from before the first task are frozen
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


def test_a_batch_write_leaves_no_file_on_the_driver_whether_it_succeeds_or_fails(
    spark: SparkSession, options: dict[str, str]
) -> None:
    before = files_of_writes()
    for ids in (spark.range(10), spark.range(10).selectExpr("assert_true(id < 0) IS NULL AS id")):
        with suppress(Exception):
            ids.selectExpr("CAST(id AS BIGINT)").write.format("penstock.iceberg").mode("append").options(
                **options
            ).save()
        wait_until(lambda: files_of_writes() <= before)  # other processes write, too


def files_of_writes() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("penstock-write-*"))


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
    spark: SparkSession, iceberg_table: IcebergLake, reports: Path
) -> None:
    """Otherwise the reports of the tasks would prove nothing."""
    (reports / "secrets").write_text("{}")
    options = {**iceberg_table.options, "catalog.report": str(reports)}
    uri = f"sqlite:///{iceberg_table.warehouse}/catalog.sqlite"
    Path(str(iceberg_table.warehouse)).mkdir()
    options |= {"catalog": "penstock", "catalog.type": "sql", "catalog.uri": uri}
    options["warehouse"] = f"file://{iceberg_table.warehouse}"
    ids = spark.range(0, 10, numPartitions=1)
    ids.write.format("watched.iceberg").mode("append").options(**options).save()

    assert iceberg_table.ids() == list(range(10))
