"""compactWith=spark: a job on the cluster finds the rows that a batch replaces, if the table is large."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.committers import test_delta_changes as of_delta
from tests.support import iceberg_changes as of_iceberg
from tests.support.backlogs import RecordingListener, context_of

from penstock.committers.changes.file_search import (
    FileSearch,
    FoundRows,
    SearchedFile,
    SearchesFiles,
    search_here,
)
from penstock.committers.changes.key_files import OpenFile
from penstock.committers.contract import Committed, Conflict
from penstock.committers.errors import RetryableError
from penstock.committers.file_tables.manifest import LakeManifest
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory
from penstock.delivery import key_search
from penstock.delivery.drain import drain
from penstock.delivery.key_search import SparkSearch
from penstock.testing.faults import at_point

Changed = of_delta.Changed | of_iceberg.Changed


class TasksInThisProcess:
    """In the place of a Spark session. What is sent to tasks and back is pickled."""

    def __init__(self) -> None:
        self.tasks: list[int] = []
        """Of each job."""

    def createDataFrame(self, rows: Sequence[tuple[bytes]], _schema: str) -> TasksInThisProcess:
        self._values = [value for (value,) in rows]
        return self

    def coalesce(self, _partitions: int) -> TasksInThisProcess:
        return self

    def repartition(self, partitions: int) -> TasksInThisProcess:
        self.tasks.append(partitions)
        return self

    def mapInArrow(self, task: Any, _schema: str) -> TasksInThisProcess:
        batches = [pa.record_batch([pa.array([value], pa.binary())], ["data"]) for value in self._values]
        self._task, self._batches = pickle.dumps(task), batches
        return self

    def collect(self) -> list[dict[str, bytes]]:
        done = [one for batch in self._batches[::-1] for one in pickle.loads(self._task)([batch])]
        return [{"data": value} for batch in done for value in batch.column("data").to_pylist()]


@pytest.fixture
def store() -> Iterator[SqlManifestStore]:
    with open_store_in_memory() as store:
        yield store


@pytest.fixture(params=["delta", "iceberg"])
def changed(request: pytest.FixtureRequest, tmp_path: Path, store: SqlManifestStore) -> Changed:
    kind = of_delta if request.param == "delta" else of_iceberg
    return kind.Changed(tmp_path, store, options={"lateRows": "ignore"})


@pytest.fixture
def delta(tmp_path: Path, store: SqlManifestStore) -> of_delta.Changed:
    return of_delta.Changed(tmp_path, store, {"delivery": "decoupled", "compactWith": "spark"})


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each table is large enough for a Spark job, and a task has few files."""
    monkeypatch.setattr(key_search, "HERE_BYTES_MAX", 0)
    monkeypatch.setattr(key_search, "TASK_FILES_MAX", 2)


def rows_of(changed: Changed) -> Callable[..., Any]:
    return of_delta.row if isinstance(changed, of_delta.Changed) else of_iceberg.row


def append(changed: Changed, row: Any) -> None:
    if isinstance(changed, of_delta.Changed):
        of_delta.foreign_append(changed, row)
    else:
        changed.append(row)


def as_lists(found: Sequence[FoundRows]) -> list[object]:
    return [(one.rows.to_pylist(), one.key.to_pylist(), [o.to_pylist() for o in one.values]) for one in found]


@pytest.mark.usefixtures("large")
def test_a_job_finds_the_rows_that_are_found_here_also_after_a_conflict(
    changed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, spark, searched = rows_of(changed), TasksInThisProcess(), list[int]()

    def search(target: Any) -> Callable[..., Sequence[FoundRows]]:
        on_spark = SparkSearch(lambda: spark, target.rewrite_config)  # type: ignore[arg-type,return-value]

        def both(
            content: LakeManifest, search: FileSearch, files: Sequence[SearchedFile], open_file: OpenFile
        ) -> Sequence[FoundRows]:
            found = on_spark(content, search, files, open_file)
            assert as_lists(found) == as_lists(search_here(content, search, files, open_file))
            searched.append(sum(len(one.rows) for one in found))
            return found

        return both

    for number in range(5):
        changed.change([row(k, 10 + k) for k in range(number, 50, 5)])
    monkeypatch.setattr(SearchesFiles, "_search_files", property(search))
    changes = [row(k, 15 + k) if k % 3 else row(k, 1 if k % 2 else 99, op="d") for k in range(0, 50, 4)]
    manifest, target = changed.prepare(changes[::2], changes[1::2]), changed.query.target()
    with at_point("commit.start", lambda: append(changed, row(4, 1))):
        assert isinstance(target.commit(manifest), Conflict)
    assert isinstance(target.commit(manifest), Committed)
    changed.expect(changes)
    changed.check()
    assert searched == [len(changes), 1]
    assert spark.tasks == [3, 1], "after the conflict, only the file that was appended"


@pytest.mark.usefixtures("large")
def test_a_delivery_searches_with_spark_and_tries_again_if_the_job_fails(delta: of_delta.Changed) -> None:
    spark, listener = TasksInThisProcess(), RecordingListener()
    failing = iter([ConnectionError("the driver has ended\nand more")])

    def open_spark() -> Any:
        for error in failing:
            assert delta.query.target().token("q1") == first
            raise error
        return spark

    delta.change([of_delta.row(k, 1) for k in range(9)])
    drain(delta.store, context_of())
    first = delta.query.target().token("q1")
    delta.change([of_delta.row(k, 2) for k in range(3)])
    drain(delta.store, replace(context_of(listener), spark=open_spark))
    (error,) = [failure[1] for failure in listener.failures]
    assert isinstance(error, RetryableError)
    assert "the driver has ended. Nothing was committed." in str(error)
    assert spark.tasks == [1]
    delta.check()


def test_a_small_table_is_searched_by_the_delivery_process(delta: of_delta.Changed) -> None:
    spark: Any = TasksInThisProcess()
    for v in range(2):
        delta.change([of_delta.row(k, v) for k in range(9)])
        drain(delta.store, replace(context_of(), spark=lambda: spark))
    assert spark.tasks == []
    delta.check()
