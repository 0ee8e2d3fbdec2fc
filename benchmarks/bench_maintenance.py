"""What a stream notices of a compaction that runs beside it.

    python benchmarks/bench_maintenance.py [delta|iceberg] [--seconds N] [--every MS] [--pause MS] [--check]

A stream commits a batch of 4 small files every 100 ms, on the local disk: alone, then beside another
process that compacts the table's files with a pause of one second, 600 times as often as by default, then
alone again. All in one run: the batches' commit times, the conflicts that the stream and the compaction had,
and that no row was lost or doubled.

With `--check` the exit code is 1 if a batch met more than one conflict, or if the median commit takes more
than twice as long.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing.synchronize import Event
from typing import Any

import duckdb
import pyarrow as pa

from penstock.committers.compaction import Compaction, CompactionPolicy
from penstock.committers.contract import Batch, Conflict, DataFile, StreamKey
from penstock.committers.errors import PenstockError
from penstock.committers.lake_manifest import build_manifest
from penstock.datasource.delivery.rewriting import VisibleRewriter
from penstock.datasource.options.delta import DeltaOptions
from penstock.datasource.options.iceberg import IcebergOptions
from penstock.datasource.sinks.delta import DeltaSink
from penstock.datasource.sinks.iceberg import IcebergSink
from penstock.testing.duckdb_reader import load_extensions
from penstock.writers.data_files import DataFileWriter
from penstock.writers.plan import FileNames

QUERY = "bench"
TASKS, ROWS = 4, 1000
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
CONFLICTS_PER_BATCH_MAX, RATIO_MAX = 1, 2.0


def sink_of(kind: str, folder: str) -> Any:
    if kind == "delta":
        return DeltaSink(DeltaOptions(path=f"{folder}/table"))
    return IcebergSink(IcebergOptions(warehouse=folder, table="lake.ids"))


def rows_of(kind: str, folder: str, sink: Any) -> tuple[int, int]:
    """(rows, different ids), as another engine reads them."""
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
    landed: int = 0
    sources: int = 0
    files: int = 0
    conflicts: int = 0
    left: int = 0
    """Runs that gave way to the stream for good."""


def compact(kind: str, folder: str, pause_s: float, started: Event, stop: Event, results: Any) -> None:
    sink, work = sink_of(kind, folder), Work()
    compaction = Compaction(
        compactable(kind, sink),
        VisibleRewriter(QUERY, lambda content: sink.rewrite_plan(sink.open_table(), content)),
        CompactionPolicy(sink.options.target_file_bytes or 128 * 1024**2),
    )
    compaction.run()
    started.set()
    while not stop.wait(pause_s):
        try:
            done = compaction.run()
        except PenstockError as error:
            print(f"  compaction failed: {error}")
            continue
        work.runs += 1
        work.landed += done.sources > 0
        work.sources += done.sources
        work.files += done.files
        work.conflicts += done.conflicts
        work.left += bool(done.given_up)
    results.put(work)


def compactable(kind: str, sink: Any) -> Any:
    if kind == "delta":
        from penstock.committers.delta.compaction import DeltaCompactableTable
        from penstock.writers.delta.partitions import serialize

        return DeltaCompactableTable(sink.table_uri, {}, QUERY, serialize)
    from penstock.committers.iceberg.compaction import IcebergCompactableTable

    return IcebergCompactableTable(sink.catalog, sink.address, QUERY)


# The stream ---------------------------------------------------------------------------------------


@dataclass
class Stream:
    kind: str
    folder: str
    sink: Any
    planned: Any
    next_batch: int = 0
    times_ms: list[float] = field(default_factory=list)
    conflicts: list[int] = field(default_factory=list)
    """Of each batch."""

    def run(self, seconds: float, every_s: float) -> None:
        self.times_ms, self.conflicts = [], []
        end = time.monotonic() + seconds
        due = time.monotonic()
        while time.monotonic() < end:
            self.commit()
            due += every_s
            time.sleep(max(due - time.monotonic(), 0.0))

    def commit(self) -> None:
        manifest = self.prepare()
        conflicts = 0
        start = time.perf_counter()
        while isinstance(self.sink.open_table().commit(manifest), Conflict):
            conflicts += 1
        self.times_ms.append((time.perf_counter() - start) * 1000)
        self.conflicts.append(conflicts)

    def prepare(self) -> Any:
        batch_id = self.next_batch
        files: list[DataFile] = []
        self.next_batch += 1
        for task in range(TASKS):
            writer = DataFileWriter(self.planned.files, FileNames(QUERY, "run", batch_id, task, 0))
            first = (batch_id * TASKS + task) * ROWS
            ids = range(first, first + ROWS)
            writer.write(
                pa.record_batch([pa.array(ids, pa.int64()), [f"name {n}" for n in ids]], schema=SCHEMA)
            )
            files += writer.close()
        digest = hashlib.sha256(str(batch_id).encode()).hexdigest()
        batch = Batch(StreamKey(QUERY, self.sink.table_uri), batch_id, digest)
        return build_manifest(batch, self.planned.content.with_files(files))

    def said(self) -> str:
        times = sorted(self.times_ms)
        return (
            f"{len(times):4} batches, commit median {statistics.median(times):6.1f} ms, "
            f"p95 {times[int(len(times) * 0.95)]:6.1f} ms, max {times[-1]:6.1f} ms; conflicts "
            f"{sum(self.conflicts)}, at most {max(self.conflicts)} a batch"
        )


def measure(kind: str, seconds: float, every_s: float, pause_s: float, folder: str) -> bool:
    """True if the stream noticed no more than it may."""
    sink = sink_of(kind, folder)
    planned = sink.plan_table(sink.open_table(), SCHEMA, False, 0)
    stream = Stream(kind, folder, sink, planned)
    stream.run(2.0, every_s)
    stream.run(seconds, every_s)
    alone = [(stream.said(), statistics.median(stream.times_ms))]
    context = multiprocessing.get_context("spawn")
    started, stop, results = context.Event(), context.Event(), context.Queue()
    process = context.Process(target=compact, args=(kind, folder, pause_s, started, stop, results))
    process.start()
    started.wait(60)
    stream.run(seconds, every_s)
    stop.set()
    work: Work = results.get(timeout=60)
    process.join()
    beside, beside_ms, worst = stream.said(), statistics.median(stream.times_ms), max(stream.conflicts)
    stream.run(seconds, every_s)
    alone.append((stream.said(), statistics.median(stream.times_ms)))
    ratio = beside_ms / statistics.mean(median_ms for _, median_ms in alone)
    print(f"{kind}\n  alone:             {alone[0][0]}")
    print(f"  beside compaction: {beside}; {ratio:.2f} times")
    print(f"  alone again:       {alone[1][0]}")
    print(
        f"  compaction: {work.runs} runs, {work.landed} landed, {work.sources:,} files into {work.files:,}, "
        f"{work.conflicts} conflicts, {work.left} runs left to the next"
    )
    rows, ids = rows_of(kind, folder, sink)
    expected = stream.next_batch * TASKS * ROWS
    print(f"  rows: {rows:,} of {expected:,}, different ids: {ids:,}")
    if not rows == ids == expected:
        raise SystemExit("ROWS WERE LOST OR DOUBLED")
    return worst <= CONFLICTS_PER_BATCH_MAX and ratio <= RATIO_MAX


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", choices=("delta", "iceberg"))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each phase")
    parser.add_argument("--every", type=float, default=100.0, help="milliseconds between two batches")
    parser.add_argument("--pause", type=float, default=1000.0, help="milliseconds between two compactions")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    libraries = ", ".join(f"{name} {version(name)}" for name in ("deltalake", "pyiceberg", "pyarrow"))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {libraries}")
    right = True
    for kind in [args.kind] if args.kind else ["delta", "iceberg"]:
        with tempfile.TemporaryDirectory() as folder:
            right &= measure(kind, args.seconds, args.every / 1000, args.pause / 1000, folder)
    return 0 if right or not args.check else 1


if __name__ == "__main__":
    sys.exit(main())
