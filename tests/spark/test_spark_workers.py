"""Before and after every piece of work Spark's workers do not look through its archives and all modules."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from zipimport import zipimporter

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType
from tests.support.id_stream import IdStream

import penstock
from penstock.committers.contract import DataFiles
from penstock.committers.file_tables.manifest import LakeManifest
from penstock.datasource.batch_plan import BatchPlan, CommittableMessage
from penstock.datasource.task import TaskAttempt

pytestmark = pytest.mark.spark

BATCHES = 6
USED_TO_IT = 4
"""Batches after which a worker imports nothing any more."""
SEARCHED_MAX = 5000
"""Objects; Spark's worker alone has 30,000."""


def searched() -> str:
    """How many finders in archives this process has, and how many objects a search for garbage looks at."""
    finders = sum(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
    return f"{os.getpid()} {finders} {len(gc.get_objects())}"


class CountingDataSource(penstock.DeltaDataSource):
    """Counts in front of all that it does; the counts go beside its checkpoint."""

    @classmethod
    def name(cls) -> str:
        return "counting.delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        counts = Path(self.options["checkpointLocation"]).with_name("counts")
        with counts.open("a") as file:
            file.write(f"driver {searched()}\n")
        writer: Any = super().streamWriter(schema, overwrite)
        if writer._plan is not None:
            writer._plan = CountingPlan(writer._plan, counts)
        return writer  # type: ignore[no-any-return]


class CountingPlan:
    def __init__(self, plan: BatchPlan[DataFiles, LakeManifest], counts: Path) -> None:
        self._plan = plan
        self._counts = counts

    def check_task(self, task: TaskAttempt) -> None:
        self._plan.check_task(task)

    def write(self, batches: Iterable[Any], task: TaskAttempt) -> CommittableMessage[DataFiles, LakeManifest]:
        with self._counts.open("a") as file:
            file.write(f"task {searched()}\n")
        return self._plan.write(batches, task)


def test_workers_that_have_done_it_before_have_little_to_search(
    spark: SparkSession, delta_ids: IdStream
) -> None:
    spark.dataSource.register(CountingDataSource)
    delta_ids.add_files(BATCHES)
    rows = delta_ids.rows().coalesce(1)
    writer = rows.writeStream.format("counting.delta").options(**delta_ids.table.options)
    writer = writer.option("checkpointLocation", str(delta_ids.checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()

    finders: dict[str, list[int]] = {}
    objects: dict[str, list[int]] = {}
    for line in (delta_ids.root / "counts").read_text().splitlines():
        what, process, *counts = line.split()
        finders.setdefault(f"{what} {process}", []).append(int(counts[0]))
        objects.setdefault(f"{what} {process}", []).append(int(counts[1]))
    assert {worker.split()[0] for worker in finders} == {"driver", "task"}
    assert any(len(counts) > USED_TO_IT for counts in finders.values())
    assert not {worker: counts for worker, counts in finders.items() if any(counts[USED_TO_IT:])}
    later = {worker: counts[USED_TO_IT:] for worker, counts in objects.items()}
    assert not {worker: counts for worker, counts in later.items() if max(counts, default=0) > SEARCHED_MAX}
