"""A query with routes into Delta tables, and its store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.support.cli import Ended
from tests.support.lakes import DeltaLake

from penstock.committers.contract import ManifestState, StreamKey
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.delta.sink import DESTINATION
from penstock.datasource.destinations import DestinationType
from penstock.testing.conformance import Query

QUERY_ID = "q1"


@dataclass
class Place:
    """See `Place` of the conformance suite."""

    options: dict[str, str]
    destination: DestinationType = field(default_factory=lambda: replace(DESTINATION))


@dataclass
class RoutedTables:
    """One table for each tenant."""

    root: Path
    store: SqlManifestStore
    store_url: str

    @property
    def options(self) -> dict[str, str]:
        return {
            "path": f"{self.root}/lake/{{tenant}}",
            "routeBy": "tenant",
            "checkpointLocation": f"{self.root}/checkpoint",
            "deliverAfterSeconds": "1",
        }

    def options_by(self, column: str) -> dict[str, str]:
        return {**self.options, "path": f"{self.root}/lake/{{{column}}}", "routeBy": column}

    def query(self, **options: str) -> Query:
        return Query(Place({**self.options, **options}), QUERY_ID, store=self.store)

    def run(self, query: Query, number: int, *parts: pa.Table, run_id: str = "r1") -> None:
        query.run(self.store, query.batch(number), *parts, run_id=run_id)

    def table(self, tenant: str) -> DeltaLake:
        return DeltaLake(self.root / "lake" / tenant)

    def stream(self, tenant: str) -> StreamKey:
        return StreamKey(QUERY_ID, f"{self.root}/lake/{tenant}")

    def state(self, tenant: str, batch_id: int) -> ManifestState | None:
        record = self.store.record(self.stream(tenant), batch_id)
        return None if record is None else record.state

    def deliver(self) -> Ended:
        return Ended("deliver", "--once", "--no-maintenance", "--store", self.store_url)

    def row_log(self) -> list[Path]:
        return sorted((self.root / "checkpoint" / "row-log").rglob("*.arrow"))


@contextmanager
def routed_tables(root: Path, url: str | None = None) -> Iterator[RoutedTables]:
    url = url or f"sqlite:///{root}/store.db"
    with open_store(url) as store:
        yield RoutedTables(root, store, url)


def of_tenants(first: int, *tenants: str | None, **columns: Sequence[Any]) -> pa.Table:
    """Rows with ids from the first one on."""
    ids = pa.array(range(first, first + len(tenants)), pa.int64())
    return pa.table({"id": ids, "tenant": pa.array(tenants, pa.string()), **columns})
