"""A real table and a real store, with files as the writers leave them, for tests without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.support.lakes import LAKES, IcebergLake, rows
from typing_extensions import Self

from penstock.committers.cleaning.cleanup import ClassifiedFiles, CleanableTable, Cleanup, ListedFile
from penstock.committers.contract import (
    AttemptId,
    Batch,
    DataFile,
    DataFiles,
    Manifest,
    Mode,
    StreamKey,
)
from penstock.committers.delta.cleanup import DeltaCleanableTable
from penstock.committers.file_tables.manifest import PlannedFiles, build_manifest
from penstock.committers.iceberg.cleanup import IcebergCleanableTable
from penstock.committers.protocol.recovery import Recovery
from penstock.committers.store.sql import open_store
from penstock.datasource.committing import manifest_of
from penstock.datasource.destinations import paths_of
from penstock.datasource.file_table import FileTableSink
from penstock.datasource.planning.batch_plan import CommittableMessage
from penstock.datasource.planning.plan import plan_batch_write
from penstock.datasource.spark.task import TaskAttempt
from penstock.delivery.compaction import TableFileRewriter
from penstock.delivery.rewriting import GroupRewriter, InlineExecutor
from penstock.testing.conformance.query import committables, payloads
from penstock.writers.parquet.file_names import parse_file_name

NOW = datetime.now(timezone.utc)
OLD, YOUNG = timedelta(days=30), timedelta(days=1)
GRACE = timedelta(days=7)
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string())])
DAYS = ("2026-11-20", "a b%20/c")


def files_of(message: CommittableMessage) -> DataFiles:
    """The files of the only target."""
    return tuple(file for files in payloads([message]) for file in files)


class TalkativeCatalog(SqlCatalog):
    """A catalog whose errors quote all that it was opened with, as some drivers' do."""

    def __init__(self, name: str, **properties: str) -> None:
        raise ConnectionError(f"cannot log in to {name}: {properties}")


class Lake:
    """A real table and a real store, with files as the writers leave them, 30 days ago."""

    def __init__(
        self, folder: Path, store_url: str | None = None, query_id: str = "q0", kind: str = "delta"
    ) -> None:
        self.kind = kind
        self.lake = LAKES[kind](folder)
        self.table = self.lake.data_folder
        """What the paths of data files are relative to."""
        self.stores = folder / "stores"
        self.store_url = store_url or f"sqlite:///{self.stores}/0.db"
        self.store = open_store(self.store_url)
        self.query_id = query_id
        self.digests: dict[int, str] = {}
        self.runs = self.ids = 0
        self.planned = self.plan()
        self.register()

    @property
    def sink(self) -> FileTableSink:
        return self.lake.sink(**{self.lake.partitioning: "day"})

    @property
    def stream(self) -> StreamKey:
        return StreamKey(self.query_id, self.sink.table_uri)

    @property
    def table_id(self) -> str:
        return self.planned.content.table_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    @property
    def iceberg(self) -> IcebergLake:
        assert isinstance(self.lake, IcebergLake)
        return self.lake

    def register(self) -> None:
        self.store.register_stream(self.stream, self.kind, "ids", self.table_id)

    def plan(self, mode: Mode = "append") -> PlannedFiles:
        """Creates the table if it is not there."""
        return self.sink.open_table().plan_batch(SCHEMA, mode, 0)

    def lose_store(self) -> None:
        self.store.close()
        self.store_url = f"sqlite:///{self.stores}/{len(list(self.stores.glob('*.db')))}.db"
        self.store = open_store(self.store_url)
        self.register()

    def committer(self) -> Any:
        return self.sink.open_table()

    def batch(self, batch_id: int) -> Batch:
        return Batch(self.stream, batch_id, self.digests.get(batch_id, f"{batch_id:064x}"))

    def write(self, batch_id: int, age: timedelta = OLD) -> list[DataFile]:
        """The files of one task attempt, one per table partition."""
        self.runs += 1
        writer = self.planned.writers.open(AttemptId(self.query_id, f"run-{self.runs}", batch_id, 0, 0))
        ids = range(self.ids + 1, self.ids + 1 + len(DAYS))
        self.ids += len(DAYS)
        writer.write(pa.record_batch([pa.array(ids, pa.int64()), pa.array(DAYS)], schema=SCHEMA))
        files = list(writer.finish())
        for file in files:
            self.set_age(file.path, age)
        return files

    def batch_write(self, age: timedelta, files_age: timedelta | None = None) -> CommittableMessage:
        """What the only task of a batch write hands back that began so long ago; nothing is committed."""
        columns = StructType([StructField("id", LongType()), StructField("day", StringType())])
        plan = plan_batch_write(self.sink, columns, overwrite=False, now=lambda: NOW - age)
        batch = pa.record_batch([pa.array([100, 101]), pa.array(DAYS)], schema=SCHEMA)
        task = TaskAttempt(partition=0, attempt=0, run_id="", query_id="", batch_id=None)
        message = plan.write([batch], task)
        for file in files_of(message):
            self.set_age(file.path, age if files_age is None else files_age)
        return message

    def manifest_of_write(self, message: CommittableMessage) -> Manifest:
        """The manifest of a batch write of one task."""
        return manifest_of(self.sink.open_table(), message.targets[0].content, committables([message]))

    def set_age(self, path: str, age: timedelta) -> None:
        os.utime(self.table / path, 2 * ((NOW - age).timestamp(),))

    def prepare(
        self,
        batch_id: int,
        files: Iterable[DataFile],
        mode: Mode = "append",
        times: tuple[datetime | None, datetime | None] = (None, None),
    ) -> Manifest:
        """
        Args:
            times: when it was planned, and when it was written
        """
        content = self.plan(mode).content.with_files(list(files))
        manifest = build_manifest(self.batch(batch_id), content)
        manifest = replace(manifest, planned_at=times[0], written_at=times[1])
        self.runs += 1
        self.store.claim(self.stream, f"run-{self.runs}")
        self.store.prepare(manifest, f"run-{self.runs}")
        return manifest

    def commit(self, batch_id: int, files: Iterable[DataFile], mode: Mode = "append") -> None:
        self.prepare(batch_id, files, mode)
        self.recover()

    def recover(self) -> None:
        Recovery(self.store, self.committer()).recover(self.stream)

    def rewriter(
        self, executor: InlineExecutor | None = None, stop: Callable[[], bool] = lambda: False
    ) -> TableFileRewriter:
        """Rewrites the table's files in this process."""
        sink = self.sink
        here = GroupRewriter(executor or InlineExecutor())
        return TableFileRewriter(
            self.query_id, lambda content: sink.open_table().rewrite_config(content), here, stop=stop
        )

    def cleanable(self, branch: str = "main") -> CleanableTable:
        if self.kind == "delta":
            return DeltaCleanableTable(str(self.table), {})

        def load() -> Table | None:
            return self.iceberg.load() if self.lake.exists else None

        return IcebergCleanableTable(load, self.sink.table_uri, branch, self.store.expiries)

    def cleanup(self) -> Cleanup:
        known = [stream.key for stream in self.store.streams()]
        return Cleanup(self.store, self.cleanable(), known, parse_file_name, paths_of)

    def find(self) -> ClassifiedFiles:
        return self.cleanup().find(NOW, GRACE)

    def clean_up(self) -> int:
        one = self.cleanup()
        return sum(one.delete(one.find(NOW, GRACE)))

    def on_disk(self) -> set[str]:
        files = {str(path.relative_to(self.table)) for path in self.table.rglob("*.parquet")}
        return {path for path in files if not path.startswith("_delta_log")}

    def rows(self) -> list[tuple[object, ...]]:
        """The newest version, by another engine than the one that wrote it."""
        return rows(self.lake, "id")


def lake_of_small_files(folder: Path, kind: str, batches: int = 6) -> Lake:
    """A table of two small files for each batch, in two partitions."""
    lake = Lake(folder, kind=kind)
    for batch_id in range(batches):
        lake.commit(batch_id, lake.write(batch_id))
    return lake


def paths(files: Iterable[DataFile | ListedFile]) -> set[str]:
    return {file.path for file in files}
