"""Spark's workers search neither its archives nor all modules before and after each task."""

from __future__ import annotations

import gc
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any
from zipimport import zipimporter

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter
from pyspark.sql.types import StructType
from tests.spark.watched_plan import WatchedPlan
from tests.support.id_stream import IdStream

import penstock
from penstock.datasource.spark.task import TaskAttempt

pytestmark = pytest.mark.spark

BATCHES = 6
WARM_BATCHES = 4
"""Batches after which a worker imports nothing."""
SEARCHED_MAX = 5000
"""Objects; Spark's worker alone has 30,000."""


def searched() -> str:
    """Return the numbers of archive finders and of objects that garbage collection searches."""
    finders = sum(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())
    return f"{os.getpid()} {finders} {len(gc.get_objects())}"


class CountingDataSource(penstock.DeltaDataSource):
    """A data source that counts before each step, into a file next to its checkpoint."""

    format = "counting.delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        counts = Path(self.options["checkpointLocation"]).with_name("counts")
        with counts.open("a") as file:
            file.write(f"driver {searched()}\n")
        writer: Any = super().streamWriter(schema, overwrite)
        if writer._plan is not None:
            writer._plan = WatchedPlan(writer._plan, partial(count_in_task, counts))
        return writer


def count_in_task(counts: Path, _task: TaskAttempt) -> None:
    with counts.open("a") as file:
        file.write(f"task {searched()}\n")


def test_reused_workers_have_little_to_search(spark: SparkSession, delta_ids: IdStream) -> None:
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
    assert any(len(counts) > WARM_BATCHES for counts in finders.values())
    assert not {worker: counts for worker, counts in finders.items() if any(counts[WARM_BATCHES:])}
    later = {worker: counts[WARM_BATCHES:] for worker, counts in objects.items()}
    assert not {worker: counts for worker, counts in later.items() if max(counts, default=0) > SEARCHED_MAX}
