"""A query of `penstock.lake`: a Delta table and an Iceberg table with the same files, and its store."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from tests.support.cli import Ended
from tests.support.lakes import DeltaLake, IcebergLake

from penstock.committers.contract import ManifestState, StreamKey
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.delta.sink import DESTINATION
from penstock.datasource.stored.table_access import TableAccess
from penstock.delivery.maintenance_steps import StepResult, maintenance_runner
from penstock.delivery.stream_settings import StreamSettings, build_sink
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids

TARGETS = ("delta", "iceberg")

KINDS = ("a b%20/c", "é=ü", None)
NO_RETENTION = {
    "target.delta.tableProperties": json.dumps({"delta.deletedFileRetentionDuration": "interval 0 days"})
}

_ONCE_A_YEAR = timedelta(days=366)
_runs = count()


@dataclass
class LakePlace:
    """See `Place`."""

    options: dict[str, str]
    destination = replace(DESTINATION, data_source="penstock.datasource.lake.source:LakeDataSource")


@dataclass
class LakePair:
    root: Path
    store: SqlManifestStore
    store_url: str

    @cached_property
    def delta(self) -> DeltaLake:
        return DeltaLake(self.root / "delta" / "table")

    @cached_property
    def iceberg(self) -> IcebergLake:
        return IcebergLake(self.root / "warehouse")

    @property
    def tables(self) -> tuple[DeltaLake, IcebergLake]:
        return self.delta, self.iceberg

    def options(self, **more: str) -> dict[str, str]:
        return {
            **self.delta.options,
            **self.iceberg.options,
            "checkpointLocation": str(self.root / "checkpoint"),
            "deliverAfterSeconds": "1",
            **more,
        }

    def query(self, query_id: str = "q1", **more: str) -> Query:
        return Query(LakePlace(self.options(**more)), query_id)

    def stream(self, target: str, query_id: str = "q1") -> StreamKey:
        targets = self.query().with_targets().targets
        return StreamKey(query_id, targets[target].table_uri)

    def states(self, batch_id: int) -> list[ManifestState | None]:
        records = [self.store.record(self.stream(target), batch_id) for target in TARGETS]
        return [None if record is None else record.state for record in records]

    def deliver(self, target: str | None = None) -> Ended:
        """`penstock deliver --once`, of one table or both, without maintenance."""
        chosen = () if target is None else (str(self.stream(target)),)
        return Ended("deliver", "--once", "--no-maintenance", "--store", self.store_url, *chosen)

    def maintain(self, target: str = "delta", at: datetime | None = None) -> dict[str, StepResult]:
        """All steps of the delivery process for one table, by their names. The clock stands still at `at`."""
        now, stream = at or datetime.now(timezone.utc), self.stream(target)
        status = next(one for one in self.store.streams() if one.key == stream)
        access = TableAccess({}, {})
        sink: Any = build_sink(status, StreamSettings.parse(status.settings), access)
        policy = sink.maintenance_policy()
        one = maintenance_runner(sink, self.store, stream, policy, access=access, now=lambda: now)
        return {result.step: result for result in one.run_due(_ONCE_A_YEAR * next(_runs) + now)}

    def files(self) -> set[str]:
        """Data files below the Delta table, named by a version or not."""
        return self.delta.data_files()

    def named(self) -> list[set[str]]:
        """Names of the files that the newest version of each table has."""
        uris = DeltaLake.load(self.delta).file_uris()
        tasks = self.iceberg.load().scan().plan_files()
        paths = (uris, [task.file.file_path for task in tasks])
        return [{Path(one).name for one in some} for some in paths]

    def ids(self) -> list[list[int]]:
        """What duckdb reads of each table."""
        return [table.ids() for table in self.tables]


@contextmanager
def lake_pair(root: Path, store_url: str | None = None) -> Iterator[LakePair]:
    """Two tables in a folder, and a store."""
    url = store_url or f"sqlite:///{root}/store.db"
    with open_store(url) as store:
        yield LakePair(root, store, url)


def run(
    pair: LakePair,
    query: Query,
    batch_id: int,
    *rows: pa.Table,
    offsets: str = "",
    run_id: str = "r1",
    overwrite: bool = False,
) -> None:
    """A batch with a task for each of `rows`, by default two tasks with one row each."""
    parts = rows or (ids(batch_id * 2), ids(batch_id * 2 + 1))
    query.run(pair.store, query.batch(batch_id, offsets), *parts, run_id=run_id, overwrite=overwrite)


def by_all_readers(pair: LakePair) -> dict[str, pa.Table]:
    """The rows of both tables as their libraries and polars read them."""
    delta, iceberg = pair.delta.load(), pair.iceberg.load()
    return {
        "deltalake": delta.to_pyarrow_table(),
        "deltalake dataset": delta.to_pyarrow_dataset().to_table(),
        "polars of Delta": pl.scan_delta(str(pair.delta.path)).collect().to_arrow(),
        "pyiceberg": iceberg.scan().to_arrow(),
        "polars of Iceberg": pair.iceberg.scan().collect().to_arrow(),
    }


# Compaction


def delivered(pair: LakePair, **options: str) -> Query:
    query = pair.query(**options)
    for batch_id in range(4):
        run(pair, query, batch_id)
    assert pair.deliver().code == 0
    return query


def compacted(pair: LakePair) -> str:
    result = pair.maintain()["compact"]
    assert result.error is None, result.error
    return result.done


def agree(pair: LakePair, rows: int) -> None:
    """All readers of both formats read each row once."""
    for reader, table in by_all_readers(pair).items():
        assert sorted(table["id"].to_pylist()) == list(range(rows)), reader
    assert pair.ids() == [list(range(rows))] * 2


def age_files(pair: LakePair) -> None:
    for path in pair.files():
        os.utime(pair.delta.folder / path, (1, 1))


def share(pair: LakePair) -> set[str]:
    delta, iceberg = pair.named()
    assert delta == iceberg
    return delta


def some(first: int) -> pa.Table:
    values = range(first, first + 3)
    return pa.table(
        {
            "id": pa.array(values, pa.int64()),
            "kind": pa.array(KINDS, pa.string()),
            "at": pa.array([n * 10**6 for n in values], pa.timestamp("us", "UTC")),
            "list": pa.array([[n, None] for n in values], pa.list_(pa.int64())),
        }
    )
