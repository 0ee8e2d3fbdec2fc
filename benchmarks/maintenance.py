"""Measures the effect of concurrent compaction on a stream.

A stream commits a batch of 4 small files every 100 ms, on the local disk: first alone, then while another
process compacts the table's files with a pause of one second, 600 times as often as by default, then alone
again. The run measures the commit times and the conflicts of both, and checks that no row was lost or
doubled.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from benchmarks.measure import Options, print_progress
from benchmarks.report import Report
from benchmarks.streams import FORMATS, QUERY, Stream, sink_of, write_rows

from penstock.committers.contract import DataFile
from penstock.committers.errors import PenstockError
from penstock.committers.file_tables.compaction import Compaction, CompactionPolicy
from penstock.datasource.planning.batch_plan import BatchPlan
from penstock.delivery.compaction import TableFileRewriter
from penstock.delivery.rewriting import GroupRewriter, InlineExecutor
from penstock.testing.duckdb_reader import load_extensions

TASKS, ROWS = 4, 1000
WARM_UP_S, PHASE_S, EVERY_S, PAUSE_S = 2.0, 20.0, 0.1, 1.0
"""Warm-up, each of the three phases, interval of batches, pause between compactions."""
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
CONFLICTS_PER_BATCH_MAX, RATIO_MAX = 1, 2.0


def rows_of(kind: str, folder: str, sink: Any) -> tuple[int, int]:
    """Return the number of rows and of different ids that duckdb reads."""
    with duckdb.connect() as connection:
        if kind == "delta":
            load_extensions(connection, "delta")
            source = f"delta_scan('{folder}/table')"
        else:
            from penstock.committers.iceberg.table import load

            load_extensions(connection, "avro", "iceberg")
            source = f"iceberg_scan('{load(sink.catalog, sink.address).metadata_location}')"
        counts = connection.execute(f"SELECT count(*), count(DISTINCT id) FROM {source}").fetchone()
        assert counts is not None
        return int(counts[0]), int(counts[1])


# The compacting process ---------------------------------------------------------------------------


@dataclass
class Work:
    runs: int = 0
    committed: int = 0
    sources: int = 0
    files: int = 0
    conflicts: int = 0
    postponed: int = 0
    """Runs that ended without a commit because of conflicts with the stream."""


def compact(kind: str, folder: str, pause_s: float, started: Event, stop: Event, results: Any) -> None:
    sink, work = sink_of(kind, Path(folder)), Work()
    compaction = Compaction(
        compactable(kind, sink),
        TableFileRewriter(
            QUERY, lambda content: sink.open_table().rewrite_config(content), GroupRewriter(InlineExecutor())
        ),
        CompactionPolicy(sink.options.target_file_bytes or 128 * 1024**2, small_file_bytes=96 * 1024**2),
    )
    compaction.run()
    started.set()
    while not stop.wait(pause_s):
        try:
            done = compaction.run()
        except PenstockError as error:
            print_progress(f"  compaction failed: {error}")
            continue
        work.runs += 1
        work.committed += done.sources > 0
        work.sources += done.sources
        work.files += done.files
        work.conflicts += done.conflicts
        work.postponed += bool(done.given_up)
    results.put(work)


def compactable(kind: str, sink: Any, query_id: str = QUERY) -> Any:
    if kind == "delta":
        from penstock.committers.delta.compaction import DeltaCompactableTable
        from penstock.writers.delta.partitions import serialize

        return DeltaCompactableTable(sink.table_uri, {}, query_id, serialize)
    from penstock.committers.iceberg.compaction import IcebergCompactableTable

    return IcebergCompactableTable(sink.catalog, sink.address, query_id)


# The stream ---------------------------------------------------------------------------------------


def run_for(seconds: float, stream: Stream) -> Phase:
    """Run a batch every EVERY_S seconds."""
    phase = Phase()
    due = time.monotonic()
    end = due + seconds
    while time.monotonic() < end:
        spent = stream.run(write)
        phase.times_ms.append(spent.commit * 1000)
        phase.conflicts.append(spent.conflicts)
        due += EVERY_S
        time.sleep(max(due - time.monotonic(), 0.0))
    return phase


def write(plan: BatchPlan) -> tuple[DataFile, ...]:
    """Write the files of a batch."""
    files: list[DataFile] = []
    for task in range(TASKS):
        first = (plan.batch.batch_id * TASKS + task) * ROWS
        ids = range(first, first + ROWS)
        rows = [pa.array(ids, pa.int64()), [f"name {number}" for number in ids]]
        files += write_rows(plan, task, pa.record_batch(rows, schema=SCHEMA))
    return tuple(files)


# A run ------------------------------------------------------------------------------------------------


@dataclass
class Phase:
    """Commit times and conflicts of the stream."""

    times_ms: list[float] = field(default_factory=list)
    """Of each whole commit, with conflicts and waits."""
    conflicts: list[int] = field(default_factory=list)
    """Conflicts of each commit."""

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)

    def row(self, kind: str, name: str) -> tuple[object, ...]:
        times = sorted(self.times_ms)
        p95 = times[int(len(times) * 0.95)]
        return (
            kind,
            name,
            len(times),
            self.median_ms,
            p95,
            times[-1],
            sum(self.conflicts),
            max(self.conflicts),
        )


@dataclass(frozen=True)
class Measured:
    """Results of one format."""

    alone: Phase
    beside: Phase
    again: Phase
    work: Work
    expected: int
    rows: int
    ids: int

    @property
    def ratio(self) -> float:
        return self.beside.median_ms / statistics.mean([self.alone.median_ms, self.again.median_ms])

    def phases(self, kind: str) -> Iterator[tuple[object, ...]]:
        yield self.alone.row(kind, "alone")
        yield self.beside.row(kind, "beside compaction")
        yield self.again.row(kind, "alone again")


def run(options: Options) -> Report:
    report = Report(
        "maintenance",
        "A stream beside compaction",
        f"A batch of {TASKS} small files every {EVERY_S * 1000:.0f} ms, planned and committed as on Spark's "
        f"driver. Another process compacts at the same time, with pauses of {PAUSE_S:.0f} s, 600 times as "
        "often as by default. Times are those of whole commits, with conflicts and the waits after them.",
    )
    seconds = 4.0 if options.is_quick else PHASE_S
    found = {kind: measure(kind, seconds) for kind in FORMATS if options.wants(kind)}
    for kind, one in found.items():
        report.bound(
            f"{kind}: median commit beside compaction, relative to alone",
            one.ratio,
            "<=",
            RATIO_MAX,
            " times",
        )
        conflicts = max(one.beside.conflicts)
        report.bound(f"{kind}: conflicts of a batch, at most", conflicts, "<=", CONFLICTS_PER_BATCH_MAX)
        report.bound(f"{kind}: rows read by duckdb", one.rows, "==", one.expected)
        report.bound(f"{kind}: different ids", one.ids, "==", one.expected)
    header = ("", "stream", "batches", "median, ms", "p95, ms", "slowest, ms", "conflicts", "of one batch")
    report.table(header, (row for kind, one in found.items() for row in one.phases(kind)))
    report.text("The compacting process:")
    report.table(
        ("", "runs", "commits", "files before", "files after", "conflicts", "postponed runs"),
        (
            (
                kind,
                one.work.runs,
                one.work.committed,
                one.work.sources,
                one.work.files,
                one.work.conflicts,
                one.work.postponed,
            )
            for kind, one in found.items()
        ),
    )
    return report


def measure(kind: str, seconds: float) -> Measured:
    with tempfile.TemporaryDirectory(prefix="bench-maintenance-") as folder:
        sink = sink_of(kind, Path(folder))
        stream = Stream(sink, SCHEMA)
        run_for(WARM_UP_S, stream)
        alone = run_for(seconds, stream)
        context = multiprocessing.get_context("spawn")
        started, stop, results = context.Event(), context.Event(), context.Queue()
        process = context.Process(
            target=compact, args=(kind, folder, PAUSE_S, started, stop, results), daemon=True
        )
        process.start()
        if not started.wait(120):
            raise TimeoutError("the first compaction did not end")
        beside = run_for(seconds, stream)
        stop.set()
        work: Work = results.get(timeout=120)
        process.join()
        again = run_for(seconds, stream)
        print_progress(f"  {kind}: {alone.median_ms:.1f} ms alone, {beside.median_ms:.1f} beside compaction")
        rows, ids = rows_of(kind, folder, sink)
        return Measured(alone, beside, again, work, stream.next_batch * TASKS * ROWS, rows, ids)
