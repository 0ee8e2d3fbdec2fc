"""Measures the cost of a stream over time: 20,000 tiny batches in a process that runs as long as the stream.

Each batch is planned, written by one task and committed as on Spark's driver, with default settings. The
clock is simulated: a batch takes one second, so 20,000 batches take five and a half hours. Another process
maintains the table according to that clock, as a delivery process does (compaction every ten minutes, and so
on), while the stream waits. Files of expired snapshots are deleted an hour of that clock later.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from benchmarks.measure import Options, print_progress
from benchmarks.report import Report, lines
from benchmarks.streams import QUERY, Stream, sink_of, write_rows

from penstock.committers.contract import DataFile, StreamKey
from penstock.committers.maintenance import MaintenancePolicy
from penstock.committers.store.sql import open_store
from penstock.datasource.planning.batch_plan import BatchPlan
from penstock.datasource.planning.plan import store_url
from penstock.delivery.maintenance_steps import maintenance_runner

BATCHES = 20_000
ROWS = 10
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("text", pa.string())])
SAMPLE_EVERY = 100
MAINTAIN_EVERY = 600
"""Batches between two maintenance rounds: the shortest interval of the steps, in seconds."""
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
GRACE_BATCHES = 3600
CASES = ("delta", "iceberg", "delta, not maintained", "iceberg, not maintained")
TIME_RATIO_MAX, MEMORY_MB_MAX, STORE_RATIO_MAX = 1.5, 50.0, 1.05
MB = 1024**2


@dataclass
class Sample:
    """Time and resources of the stream's process, every SAMPLE_EVERY batches."""

    batch: int
    seconds: float
    """Median of the batches since the last sample."""
    slowest: float
    cpu: float
    """Median processor seconds of a batch, all threads."""
    memory: int
    open_files: int
    threads: int
    store: int
    """Bytes of the manifest store, with its log."""
    metadata: int
    """Bytes of the table's log or metadata."""
    metadata_files: int


@dataclass
class Soaked:
    """Results of one run."""

    samples: list[Sample] = field(default_factory=list)
    maintained_s: float = 0.0
    """Seconds of the maintenance process."""

    def part(self, start: float, end: float) -> list[Sample]:
        """The samples of a part of the run, from 0.0 to 1.0."""
        count = len(self.samples)
        return self.samples[int(start * count) : max(int(end * count), int(start * count) + 1)]

    def median(self, name: str, start: float, end: float) -> float:
        values: list[float] = [getattr(sample, name) for sample in self.part(start, end)]
        return statistics.median(values)


def run(options: Options) -> Report:
    batches = options.rows or (1000 if options.is_quick else BATCHES)
    report = Report(
        "soak",
        f"{batches:,} tiny batches",
        f"Consecutive batches of {ROWS} rows, planned and committed as on Spark's driver in a process that "
        "runs as long as the stream, with default settings. The clock is simulated: a batch takes one "
        "second. The second and the last tenth of each run are compared; times are "
        "processor times. As many runs as there are cores run concurrently.",
    )
    cases = [case for case in CASES if options.wants(case)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = dict(zip(cases, pool.map(partial(soak, batches=batches), cases), strict=True))
    for case, soaked in runs.items():
        _bound(report, case, soaked)
    _report_results(report, runs)
    return report


# A run ------------------------------------------------------------------------------------------------


def soak(case: str, batches: int) -> Soaked:
    """Run stream and maintenance in separate processes."""
    kind, _, is_alone = case.partition(",")
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="bench-soak-") as folder:
        ours, theirs = context.Pipe()
        process = context.Process(target=_stream, args=(case, kind, folder, batches, theirs), daemon=True)
        process.start()
        theirs.close()
        soaked = Soaked()
        with _maintainer(context, kind, folder, bool(is_alone)) as maintain:
            _follow(ours, maintain, soaked)
        process.join()
        if process.exitcode:
            raise RuntimeError(f"the stream ended with {process.exitcode}")
    return soaked


def _follow(stream: Connection, maintain: Callable[[int], None], soaked: Soaked) -> None:
    """Receive the stream's samples; the stream waits during maintenance."""
    while (sample := _received(stream)) is not None:
        soaked.samples.append(sample)
        if sample.batch % MAINTAIN_EVERY == 0:
            started = time.perf_counter()
            maintain(sample.batch)
            soaked.maintained_s += time.perf_counter() - started
        stream.send(None)


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return None


def _stream(case: str, kind: str, folder: str, batches: int, pipe: Connection) -> None:
    """The stream's process."""
    stream = Stream(sink_of(kind, Path(folder)), SCHEMA)
    taken: list[float] = []
    worked: list[float] = []
    while stream.next_batch < batches:
        started, started_cpu = time.perf_counter(), time.process_time()
        stream.run(_write)
        taken.append(time.perf_counter() - started)
        worked.append(time.process_time() - started_cpu)
        if stream.next_batch == GRACE_BATCHES // 10 and kind == "iceberg":
            grace_s = statistics.median(taken) * GRACE_BATCHES
            stream.sink = sink_of(kind, Path(folder), snapshot_grace_s=grace_s)
        if stream.next_batch % SAMPLE_EVERY == 0:
            last = taken[-SAMPLE_EVERY:]
            pipe.send(_sample(stream.next_batch, last, worked[-SAMPLE_EVERY:], Path(folder)))
            pipe.recv()
            if stream.next_batch % 1000 == 0:
                print_progress(
                    f"  {case}: {stream.next_batch:,} batches, {statistics.median(last) * 1000:.1f} ms"
                )


def _write(plan: BatchPlan) -> tuple[DataFile, ...]:
    """A batch of one task."""
    first = plan.batch.batch_id * ROWS
    ids = range(first, first + ROWS)
    at = START + timedelta(seconds=plan.batch.batch_id)
    rows = [pa.array(ids, pa.int64()), [at] * ROWS, [f"row {number}" for number in ids]]
    return write_rows(plan, 0, pa.record_batch(rows, schema=SCHEMA))


def _sample(batch: int, taken: Sequence[float], worked: Sequence[float], folder: Path) -> Sample:
    figures = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    metadata = [
        file.stat().st_size
        for pattern in ("table/_delta_log", "warehouse/bench/t/metadata")
        for file in _files(folder / pattern)
    ]
    return Sample(
        batch=batch,
        seconds=statistics.median(taken),
        slowest=max(taken),
        cpu=statistics.median(worked),
        memory=int(figures["VmRSS"].split()[0]) * 1024,
        open_files=len(list(Path("/proc/self/fd").iterdir())),
        threads=int(figures["Threads"]),
        store=sum(file.stat().st_size for file in _files(folder / "store")),
        metadata=sum(metadata),
        metadata_files=len(metadata),
    )


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    if folder.is_dir():
        yield from os.scandir(folder)


# Maintenance ------------------------------------------------------------------------------------------


@contextmanager
def _maintainer(context: Any, kind: str, folder: str, is_alone: bool) -> Iterator[Callable[[int], None]]:
    """Start the maintenance process and yield a function that maintains the table after a batch."""
    if is_alone:
        yield lambda _batch: None
        return
    ours, theirs = context.Pipe()
    process = context.Process(target=_maintain, args=(kind, folder, theirs), daemon=True)
    process.start()
    theirs.close()

    def maintain(batch: int) -> None:
        ours.send(batch)
        if (problem := ours.recv()) is not None:
            raise RuntimeError(f"maintenance failed: {problem}")

    yield maintain
    ours.close()
    process.join()


def _maintain(kind: str, folder: str, pipe: Connection) -> None:
    sink = sink_of(kind, Path(folder))
    now = [START]
    with open_store(store_url(sink.options)) as store:
        key = StreamKey(QUERY, sink.table_uri)
        maintenance = maintenance_runner(sink, store, key, MaintenancePolicy(), now=lambda: now[0])
        while (batch := _received(pipe)) is not None:
            now[0] = START + timedelta(seconds=batch)
            results = maintenance.run_due(now[0])
            pipe.send(next((str(result.error) for result in results if result.error), None))


# The page ---------------------------------------------------------------------------------------------


def _bound(report: Report, case: str, soaked: Soaked) -> None:
    def ratio(name: str, start: float) -> float:
        return soaked.median(name, 0.9, 1.0) / soaked.median(name, start, start + 0.1)

    report.bound(
        f"{case}: processor time of a batch at the end, relative to the beginning",
        ratio("cpu", 0.1),
        "<=",
        TIME_RATIO_MAX,
        " times",
    )
    memory = (soaked.median("memory", 0.9, 1.0) - soaked.median("memory", 0.1, 0.2)) / MB
    report.bound(f"{case}: growth of memory", memory, "<=", MEMORY_MB_MAX, " MB")
    files = soaked.median("open_files", 0.9, 1.0) - soaked.median("open_files", 0.1, 0.2)
    report.bound(f"{case}: growth of open files", files, "<=", 0)
    report.bound(
        f"{case}: size of the store at the end, relative to 60 % of the run",
        ratio("store", 0.6),
        "<=",
        STORE_RATIO_MAX,
        " times",
    )


def _report_results(report: Report, runs: dict[str, Soaked]) -> None:
    header = (
        "",
        "batch",
        "median, ms",
        "slowest, ms",
        "processor, ms",
        "memory, MB",
        "open files",
        "threads",
        "store, MB",
        "table's metadata, MB",
        "metadata files",
    )
    report.table(header, (row for case, soaked in runs.items() for row in _rows(case, soaked)))
    report.text(
        "The store keeps the newest 10,000 batches and does not grow after that. The log of a Delta table "
        "keeps every entry for 30 days (`delta.logRetentionDuration`). Its log checkpoints, one in 20 "
        "batches, list all files and grow with the table."
    )
    for case, soaked in runs.items():
        if soaked.maintained_s:
            report.text(f"{case}: the maintenance process worked {soaked.maintained_s:.0f} s.")
    for name, label, scale in (
        ("seconds", "time of a batch, ms", 1000.0),
        ("cpu", "processor time of a batch, ms", 1000.0),
        ("memory", "memory, MB", 1 / MB),
        ("store", "manifest store, MB", 1 / MB),
        ("metadata", "log or metadata of the table, MB", 1 / MB),
    ):
        series = {
            case: (
                [one.batch for one in soaked.samples],
                [getattr(one, name) * scale for one in soaked.samples],
            )
            for case, soaked in runs.items()
        }
        report.plot(label, lines(series, "batches", label), name)


def _rows(case: str, soaked: Soaked) -> Iterator[tuple[object, ...]]:
    for tenth in (1, 3, 5, 7, 9):
        part = soaked.part(tenth / 10, (tenth + 1) / 10)
        one = part[-1]
        yield (
            case,
            one.batch,
            statistics.median(sample.seconds for sample in part) * 1000,
            max(sample.slowest for sample in part) * 1000,
            statistics.median(sample.cpu for sample in part) * 1000,
            one.memory / MB,
            one.open_files,
            one.threads,
            one.store / MB,
            one.metadata / MB,
            one.metadata_files,
        )
