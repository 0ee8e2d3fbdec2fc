"""Streams without Spark. Each batch uses the real planner, store and commit."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.committers.contract import (
    AttemptId,
    Batch,
    Committable,
    Conflict,
    DataFile,
    DataFiles,
    Manifest,
    Outcome,
    StreamKey,
)
from penstock.committers.target import CheckToken
from penstock.datasource.committing import commit_batch
from penstock.datasource.delta.options import DeltaOptions
from penstock.datasource.delta.sink import DeltaSink
from penstock.datasource.file_table import FileTableSink
from penstock.datasource.iceberg.options import IcebergOptions
from penstock.datasource.iceberg.sink import IcebergSink
from penstock.datasource.planning.batch_plan import BatchPlan, CommittableMessage
from penstock.datasource.planning.plan import plan_batch, store_url
from penstock.datasource.query import Query
from penstock.datasource.stores import borrow_store
from penstock.writers.parts import PartPayload, PartPayloads

QUERY = "11111111-2222-3333-4444-555555555555"
FORMATS = ("delta", "iceberg")
COLUMNS, ROWS = 10, 100_000
SCHEMA = pa.schema([(f"c{n}", pa.int64()) for n in range(COLUMNS)])


def sink_of(kind: str, folder: Path, **options: Any) -> Any:
    """Return a sink with default settings and `options`, with table and store in the folder."""
    store = f"sqlite:///{folder}/store/penstock.db"
    if kind == "delta":
        return DeltaSink(DeltaOptions(path=str(folder / "table"), store=store, **options))
    return IcebergSink(
        IcebergOptions(table="bench.t", warehouse=str(folder / "warehouse"), store=store, **options)
    )


@dataclass
class BatchTimes:
    """Seconds of one batch, by step."""

    plan: float = 0.0
    commit: float = 0.0
    """Everything in Spark's commit process."""
    table: float = 0.0
    """The part of `commit` in the table committer."""
    maintain: float = 0.0
    """The part of `commit` for the expiry of snapshots."""
    cpu: float = 0.0
    """Processor time of the commit in all threads. Other programs on the machine do not affect it."""
    conflicts: int = 0
    """Number of conflicts with other writers."""

    @property
    def store(self) -> float:
        """The part of `commit` in the store: mainly prepare and mark."""
        return self.commit - self.table - self.maintain

    @property
    def batch(self) -> float:
        return self.plan + self.commit


class TimedTable:
    """A table committer that measures the time of its commits and counts conflicts."""

    def __init__(self, table: Any, spent: BatchTimes) -> None:
        self._table = table
        self._spent = spent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, manifest: Manifest, check_token: CheckToken) -> Outcome:
        with timed(self._spent, "table"):
            outcome: Outcome = self._table.commit(manifest, check_token)
        self._spent.conflicts += isinstance(outcome, Conflict)
        return outcome


class TimedSink:
    """A sink that measures the time of the steps of a commit."""

    def __init__(self, sink: FileTableSink, spent: BatchTimes) -> None:
        self._sink = sink
        self._spent = spent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def open_table(self) -> Any:
        return TimedTable(self._sink.open_table(), self._spent)

    def maintain(self, store: Any, batch: Batch) -> None:
        with timed(self._spent, "maintain"):
            self._sink.maintain(store, batch)


@contextmanager
def timed(spent: BatchTimes, part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    setattr(spent, part, getattr(spent, part) + time.perf_counter() - started)


WriteFiles = Callable[[BatchPlan], "tuple[DataFile, ...]"]


@dataclass
class Stream:
    """A query whose batches have the same columns."""

    sink: Any
    schema: pa.Schema = SCHEMA
    query_id: str = QUERY
    next_batch: int = 0
    key: StreamKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = StreamKey(self.query_id, self.sink.table_uri)

    def run(self, write: WriteFiles) -> BatchTimes:
        """Run the next batch; the time of `write`, which returns its files, is not measured."""
        spent = BatchTimes()
        sink = TimedSink(self.sink, spent)
        batch = Batch(self.key, self.next_batch, hashlib.sha256(str(self.next_batch).encode()).hexdigest())
        url = store_url(self.sink.options)
        with timed(spent, "plan"), borrow_store(url) as store:
            plan = plan_batch(Query.of(self.sink), store, batch, self.schema, overwrite=False)
        committable: Committable[PartPayloads] = Committable(batch, "run", 0, 0, (PartPayload(write(plan)),))
        started = time.process_time()
        with timed(spent, "commit"), borrow_store(url) as store:
            commit_batch(Query.of(sink), store, [CommittableMessage(committable, plan.targets)])
        spent.cpu = time.process_time() - started
        self.next_batch += 1
        return spent


def write_rows(plan: BatchPlan, task: int, rows: pa.RecordBatch) -> tuple[DataFile, ...]:
    """Write the rows as one task does."""
    assert plan.writers is not None, "the batch is new"
    attempt = AttemptId(plan.batch.stream.query_id, "run", plan.batch.batch_id, task, 0)
    writer = plan.writers.open(attempt)
    writer.write(rows)
    files: DataFiles = writer.finish()[0].payload
    return files


# Files that do not exist ------------------------------------------------------------------------------


def named_files(kind: str, count: int) -> WriteFiles:
    """Return entries of files with statistics. No commit opens the files, so they are not written."""
    statistics_of = delta_statistics if kind == "delta" else iceberg_statistics

    def write(plan: BatchPlan) -> tuple[DataFile, ...]:
        return tuple(_named_file(plan.batch, number, count, statistics_of) for number in range(count))

    return write


def _named_file(batch: Batch, number: int, count: int, statistics_of: Callable[[int], str]) -> DataFile:
    first = (batch.batch_id * count + number) * ROWS
    path = f"penstock-{batch.stream.query_id}-run-{batch.batch_id:08d}-{number:05d}-0-0000.zstd.parquet"
    return DataFile(path, 8_000_000, ROWS, (), statistics_of(first))


def delta_statistics(first: int) -> str:
    columns = [f"c{n}" for n in range(COLUMNS)]
    bounds = {
        "numRecords": ROWS,
        "minValues": dict.fromkeys(columns, first),
        "maxValues": dict.fromkeys(columns, first + ROWS - 1),
        "nullCount": dict.fromkeys(columns, 0),
    }
    return json.dumps(bounds)


def iceberg_statistics(first: int) -> str:
    ids = range(1, COLUMNS + 1)
    bounds = {
        "column_sizes": dict.fromkeys(ids, 800_000),
        "value_counts": dict.fromkeys(ids, ROWS),
        "null_value_counts": dict.fromkeys(ids, 0),
        "nan_value_counts": {},
        "lower_bounds": dict.fromkeys(ids, first.to_bytes(8, "little").hex()),
        "upper_bounds": dict.fromkeys(ids, (first + ROWS - 1).to_bytes(8, "little").hex()),
        "split_offsets": [4],
    }
    return json.dumps(bounds)
