"""Measures delivery processes that share the streams of one Postgres store.

The batches are prepared by the calls of Spark, without Spark: real data files and manifests. Then one or two
processes of `penstock deliver --once` start at the same time, and find them among the other streams.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import sqlalchemy as sa
from benchmarks.many_streams import add_streams
from benchmarks.measure import Options, machine, print_progress
from benchmarks.postgres import postgres_url
from benchmarks.report import Report
from deltalake import DeltaTable

from penstock.committers.contract import ManifestState
from penstock.committers.delta.library_commit import add_actions
from penstock.committers.file_tables.manifest import decode
from penstock.committers.store import queries
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.committers.store.tables import deliveries, manifests
from penstock.datasource.delta.sink import DESTINATION
from penstock.testing.conformance import Query

STREAMS, QUICK_STREAMS = 10_000, 1_000
"""In the store; those with batches come on top."""
BUSY, QUICK_BUSY = 20, 10
BATCHES = 150
"""Prepared for each busy stream: those of two and a half minutes, with a trigger of one second."""
ROWS = 10
"""Of a batch."""
BATCHES_A_SECOND = 1_000


class Place:
    """See `penstock.testing.conformance.query.Place`."""

    destination = DESTINATION

    def __init__(self, folder: Path, compact_with: str) -> None:
        self.options = {"path": str(folder), "delivery": "decoupled", "compactWith": compact_with}


def run(options: Options) -> Report:
    streams, busy = (QUICK_STREAMS, QUICK_BUSY) if options.is_quick else (STREAMS, BUSY)
    report = Report(
        "shared_delivery",
        "Delivery processes that share a store",
        f"A Postgres store with {streams:,} streams. {busy} more, which write Delta tables on a local disk, "
        f"have {BATCHES} prepared batches of {ROWS} rows, each with a data file of its own. Then one "
        "or two processes of `penstock deliver --once` start: they find them, merge those of a stream into "
        "one commit, and end. `local` rewrites the small files of a delivery as one, `none` leaves them. The "
        "seconds are those from the first delivery to the last; before it, a process starts, and reads the "
        "state of all streams, and after it, the tables are maintained. The processes share two cores with "
        "the server. Each row is in its table once afterwards. `limit` is what no delivery can do without, "
        "in one process: it reads the manifests of a stream with two statements, decodes them, commits their "
        "files, and marks the batches with one statement; nothing is leased, checked or made durable.",
    )
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory(prefix="bench-shared-") as name, postgres_url() as url:
        with open_store(url) as store:
            report.machine = machine("deltalake", "sqlalchemy", "psycopg")
            add_streams(store, Path(name), streams)
            for compact_with in ("none", "local"):
                fleet = Fleet(store, url, Path(name, compact_with), busy, compact_with)
                for processes in (1, 2):
                    seconds = fleet.delivered(processes)
                    speed = busy * BATCHES / seconds
                    rows.append((f"`{compact_with}`", processes, seconds, speed, fleet.shares))
                if compact_with == "none":
                    seconds = fleet.limit()
                    rows.append(("limit", 1, seconds, busy * BATCHES / seconds, ""))
    report.table(("files", "processes", "seconds", "batches a second", "streams of each process"), rows)
    what = "batches a second, delivered by two processes that leave the files"
    report.bound(what, float(str(rows[1][3])), ">=", BATCHES_A_SECOND)
    return report


class Fleet:
    """The busy streams."""

    def __init__(self, store: SqlManifestStore, url: str, folder: Path, busy: int, compact_with: str) -> None:
        self._store, self._url = store, url
        self._tables = [folder / f"busy{number}" for number in range(busy)]
        self._queries = [
            Query(Place(table, compact_with), f"{compact_with}-{table.name}", store=store)
            for table in self._tables
        ]
        self._next = 0
        self.shares = ""
        """How many streams each process has delivered in the last run."""

    def delivered(self, processes: int) -> float:
        """Return the seconds from the first delivery to the last."""
        self._prepare()
        command = [sys.executable, "-m", "penstock.cli", "deliver", "--once", "--json", "--store", self._url]
        started_at = datetime.now(timezone.utc)
        with ThreadPoolExecutor(processes) as pool:
            outputs = list(pool.map(_output, itertools.repeat(command, processes)))
        first, last = sa.func.min(deliveries.c.prepared_at), sa.func.max(deliveries.c.finished_at)
        with self._store.engine.connect() as connection:
            begun = sa.select(first, last).where(deliveries.c.prepared_at >= started_at)
            first_at, last_at = connection.execute(begun).one()
        delivered = [[one for one in streams if one["deliveries"]] for streams in outputs]
        assert sum(one["batches"] for streams in delivered for one in streams) == len(self._tables) * BATCHES
        for table in self._tables:
            assert DeltaTable(table).count() == self._next * ROWS
        self.shares = ", ".join(str(len(streams)) for streams in delivered)
        return float((last_at - first_at).total_seconds())

    def limit(self) -> float:
        """Return the seconds of what no delivery can do without."""
        self._prepare()
        deliveries, started_at = self._store.deliveries, time.perf_counter()
        for query, table in zip(self._queries, self._tables, strict=True):
            batches = [record.batch for record in deliveries.deliverable(query.stream, BATCHES)]
            found = deliveries.manifests_of(query.stream, batches)
            files = [file for manifest in found for file in decode(manifest).files]
            assert len(files) == BATCHES
            actions = add_actions(files, 0, data_change=True)
            opened = DeltaTable(table)
            opened.create_write_transaction(list(actions), "append", opened.schema())
            with self._store.engine.begin() as connection:
                is_prepared = manifests.c.state == ManifestState.PREPARED.value
                change = sa.update(manifests).where(is_prepared, queries.of_stream(query.stream))
                connection.execute(change.values(state=ManifestState.COMMITTED.value))
        return time.perf_counter() - started_at

    def _prepare(self) -> None:
        started_at = time.perf_counter()
        for query in self._queries:
            for number in range(self._next, self._next + BATCHES):
                query.run(self._store, query.batch(number), _rows(number))
        self._next += BATCHES
        seconds = time.perf_counter() - started_at
        print_progress(f"  {len(self._queries) * BATCHES:,} batches are prepared, in {seconds:.0f} s")


def _rows(number: int) -> pa.Table:
    return pa.table({"id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())})


def _output(command: Sequence[str]) -> list[dict[str, int]]:
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    streams: list[dict[str, int]] = json.loads(output)["streams"]
    return streams
