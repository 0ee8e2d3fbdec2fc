"""Measures a query with `routeBy`: a batch and a delivery of many tables, and a batch beside many others.

The calls are those of Spark, without Spark. A peer writes the same rows as `foreachBatch` does it: one filter
and one append for each table.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from benchmarks.measure import Options, interleaved, medians, print_progress
from benchmarks.report import Report
from deltalake import write_deltalake

from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.delta.sink import DESTINATION
from penstock.datasource.stored.table_access import TableAccess
from penstock.delivery.attempts import ServiceSettings
from penstock.delivery.context import DeliveryContext
from penstock.delivery.drain import drain
from penstock.testing.conformance import Query

TABLES = (1, 50, 500)
EXISTING, QUICK_EXISTING = 10_000, 1_000
ROWS = 200_000
GROWTH_MAX = 1.25
"""A batch beside the existing tables, compared with one in an empty store."""
DELIVERY_MAX = 8.0
"""A delivery has a lease, a record in the store before and after its commit, and checks of the table."""


class Place:
    """See `penstock.testing.conformance.query.Place`."""

    destination = DESTINATION

    def __init__(self, folder: Path) -> None:
        self.options = {
            "path": f"{folder}/lake/{{tenant}}",
            "routeBy": "tenant",
            "checkpointLocation": f"{folder}/checkpoint",
        }


def run(options: Options) -> Report:
    existing = QUICK_EXISTING if options.is_quick else EXISTING
    report = Report(
        "routes",
        "One query into many tables",
        f"{ROWS:,} rows of one task into 1, 50 and 500 Delta tables with `routeBy`, on a local disk, with "
        "the store in SQLite. A batch is plan, task, and commit: the rows are in the row log, and the "
        "manifests of all tables in the store. The peer filters the rows for each table, and appends them by "
        "the Delta library, as `foreachBatch` does; it is neither exactly-once nor atomic, and its batch "
        "waits for all tables. A delivery, by another process, writes the tables' files and commits "
        f"each with its token. Then a batch beside {existing:,} other tables of the query.",
    )
    with tempfile.TemporaryDirectory(prefix="bench-routes-") as name:
        folder = Path(name)
        rows = []
        for tables in TABLES:
            rows.append(_measured(folder / str(tables), tables, options.repeat, report))
            print_progress(f"  {tables} tables: {rows[-1]}")
        report.table(("tables", "batch, s", "delivery, s", "peer, s"), rows)
        report.table(
            ("other tables", "batch of 50 tables, s"), _beside(folder / "many", existing, options, report)
        )
    return report


def _measured(folder: Path, tables: int, repeat: int, report: Report) -> tuple[float, ...]:
    with open_store(f"sqlite:///{folder}.db") as store:
        batches = _Batches(folder, store)
        rows = rows_of(tables)
        cases: dict[str, Callable[[], float | None]] = {
            "batch": lambda: batches.run(rows),
            "delivery": lambda: _delivered(store, tables),
            "peer": lambda: _peer(folder / "peer", rows),
        }
        took = medians(interleaved(cases, min(repeat, 3), warm_up=1))
    if tables == max(TABLES):
        report.bound(
            f"{tables} tables: batch, times as fast as the peer", took["peer"] / took["batch"], ">=", 2
        )
        report.bound(
            f"{tables} tables: delivery, times as long as the peer",
            took["delivery"] / took["peer"],
            "<=",
            DELIVERY_MAX,
        )
    return tables, took["batch"], took["delivery"], took["peer"]


def _beside(folder: Path, existing: int, options: Options, report: Report) -> list[tuple[int, float]]:
    rows, took = rows_of(50), {}
    with open_store(f"sqlite:///{folder}-few.db") as few, open_store(f"sqlite:///{folder}-many.db") as many:
        alone, beside = _Batches(folder / "few", few), _Batches(folder / "many", many)
        for first in range(0, existing, 500):
            names = [f"other{number}" for number in range(first, first + 500)]
            beside.run(pa.table({"id": pa.array(range(500), pa.int64()), "tenant": names}))
        cases = {"few": lambda: alone.run(rows), "many": lambda: beside.run(rows)}
        took = medians(interleaved(cases, max(options.repeat, 5), warm_up=1))
    report.bound(
        f"a batch beside {existing:,} other tables, times as long as alone",
        took["many"] / took["few"],
        "<=",
        GROWTH_MAX,
    )
    return [(0, took["few"]), (existing, took["many"])]


class _Batches:
    """One batch after the other."""

    def __init__(self, folder: Path, store: SqlManifestStore) -> None:
        self._query = Query(Place(folder), "bench", store=store)
        self._store = store
        self._next = 0

    def run(self, rows: pa.Table) -> float:
        started = time.perf_counter()
        self._query.run(self._store, self._query.batch(self._next), rows)
        self._next += 1
        return time.perf_counter() - started


def rows_of(tables: int) -> pa.Table:
    numbers = range(ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "tenant": [f"tenant{number * 7919 % tables}" for number in numbers],
            "amount": pa.array([number * 0.25 for number in numbers]),
            "note": [f"note {number % 1000}" for number in numbers],
        }
    )


def _delivered(store: SqlManifestStore, tables: int) -> float:
    started = time.perf_counter()
    context = DeliveryContext(access=TableAccess({}, {}), settings=ServiceSettings(maintains=False))
    delivered = drain(store, context)
    assert sum(one.deliveries for one in delivered) == tables
    return time.perf_counter() - started


def _peer(folder: Path, rows: pa.Table) -> float:
    started = time.perf_counter()
    for tenant in pc.unique(rows["tenant"]).to_pylist():
        own = rows.filter(pc.equal(rows["tenant"], tenant))
        write_deltalake(str(folder / tenant), own, mode="append")
    return time.perf_counter() - started
