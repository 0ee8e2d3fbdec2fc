"""Spark's workers do not look through Spark's archives before every batch and every task."""

from __future__ import annotations

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
from tests.spark.id_stream import IdStream

import penstock
from penstock.datasource.batch_plan import BatchPlan, CommittableMessage
from penstock.datasource.task import TaskAttempt

pytestmark = pytest.mark.spark

BATCHES = 6
USED_TO_IT = 4
"""Batches after which a worker imports nothing any more."""


def archives() -> int:
    """Finders in archives that this process has."""
    return sum(isinstance(finder, zipimporter) for finder in sys.path_importer_cache.values())


class CountingDataSource(penstock.DeltaDataSource):
    """Counts finders in front of all that it does; the counts go beside its checkpoint."""

    @classmethod
    def name(cls) -> str:
        return "counting.delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        counts = Path(self.options["checkpointLocation"]).with_name("counts")
        with counts.open("a") as file:
            file.write(f"driver {os.getpid()} {archives()}\n")
        writer: Any = super().streamWriter(schema, overwrite)
        if writer._plan is not None:
            writer._plan = CountingPlan(writer._plan, counts)
        return writer  # type: ignore[no-any-return]


class CountingPlan:
    def __init__(self, plan: BatchPlan, counts: Path) -> None:
        self._plan = plan
        self._counts = counts

    def check_task(self, task: TaskAttempt) -> None:
        self._plan.check_task(task)

    def write(self, batches: Iterable[Any], task: TaskAttempt) -> CommittableMessage:
        with self._counts.open("a") as file:
            file.write(f"task {os.getpid()} {archives()}\n")
        return self._plan.write(batches, task)


def test_workers_that_have_done_it_before_have_no_finders_of_archives_left(
    spark: SparkSession, delta_ids: IdStream
) -> None:
    spark.dataSource.register(CountingDataSource)
    delta_ids.add_files(BATCHES)
    rows = delta_ids.rows().coalesce(1)
    writer = rows.writeStream.format("counting.delta").options(**delta_ids.table.options)
    writer = writer.option("checkpointLocation", str(delta_ids.checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()

    seen: dict[tuple[str, str], list[int]] = {}
    for line in (delta_ids.root / "counts").read_text().splitlines():
        what, process, count = line.split()
        seen.setdefault((what, process), []).append(int(count))
    assert {what for what, _ in seen} == {"driver", "task"}
    for (what, process), counts in seen.items():
        assert not any(counts[USED_TO_IT:]), f"{what} {process}: {counts}"
    assert any(len(counts) > USED_TO_IT for counts in seen.values())
