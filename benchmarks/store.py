"""Measures the cost of the manifest store per batch with a short and a long history.

Bulk SQL creates the history: committed batches of one stream, with contents of real manifests. Then batches
are claimed, prepared and marked as in a commit. By default a store keeps the last 10,000 batches; a million
batches need a larger `keepDelivered`.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from benchmarks.histories import add_history
from benchmarks.measure import Options, interleaved, print_progress
from benchmarks.postgres import postgres_url
from benchmarks.report import Report
from benchmarks.streams import delta_statistics

from penstock.committers.contract import Batch, DataFile, Manifest, ManifestState, StreamKey
from penstock.committers.file_tables.manifest import LakeManifest, build_manifest
from penstock.committers.store.sql import SqlManifestStore, open_store
from penstock.datasource.committing import BATCHES_PRUNED_MAX

HISTORIES = (0, 1_000_000)
BATCHES = 400
"""Batches of each case, measured in ten interleaved rounds."""
MS_MAX = {"sqlite": 5.0, "postgres": 8.0}
KEPT = 10_000
"""The default of `keepDelivered`."""
STREAM = StreamKey("11111111-2222-3333-4444-555555555555", "/lake/events")
RUN = "99999999-8888-7777-6666-555555555555"
PARTS = ("claim", "prepare", "mark", "sum", "read before the write")


@dataclass
class Case:
    """One store, and the seconds of its batches by step."""

    store: SqlManifestStore
    history: int
    next_batch: int = field(init=False)
    spent: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    cpu: list[float] = field(default_factory=list)
    """Processor seconds of a batch in this process, without the database server."""

    def __post_init__(self) -> None:
        self.next_batch = self.history

    def run(self, batches: int) -> float:
        """Run the batches and return the median in seconds."""
        for _ in range(batches):
            self._batch()
        return statistics.median(self.spent["sum"][-batches:])

    def _batch(self) -> None:
        manifest = manifest_of(self.next_batch)
        started = time.perf_counter()
        self._read(manifest.batch)
        read, read_cpu = time.perf_counter(), time.process_time()
        self.store.claim(STREAM, RUN)
        claimed = time.perf_counter()
        self.store.prepare(manifest, RUN)
        prepared = time.perf_counter()
        self.store.finish(manifest.batch, ManifestState.COMMITTED, table_version=self.next_batch)
        marked = time.perf_counter()
        self.cpu.append(time.process_time() - read_cpu)
        self.next_batch += 1
        for part, seconds in zip(
            PARTS,
            (claimed - read, prepared - claimed, marked - prepared, marked - read, read - started),
            strict=True,
        ):
            self.spent[part].append(seconds)

    def _read(self, batch: Batch) -> None:
        """Query the store as the planner does."""
        self.store.written_table(STREAM)
        self.store.pending(STREAM)
        self.store.record(STREAM, batch.batch_id)
        self.store.register_stream(STREAM, "delta", "events", "t1")

    @property
    def undisturbed_ms(self) -> float:
        """The sum of the 5th percentiles of the three steps, with little effect of other programs."""
        return sum(self.ms(part, 0.05) for part in PARTS[:3])

    def ms(self, part: str, share: float) -> float:
        values = sorted(self.spent[part])
        return values[int(share * (len(values) - 1))] * 1000


def run(options: Options) -> Report:
    report = Report(
        "store",
        "What the manifest store costs",
        f"Milliseconds of {BATCHES} batches of two files, after a history of committed batches of the same "
        "kind that bulk SQL created. Every prepare and every mark waits for the disk once. The p50 includes "
        "the load of other programs; `undisturbed` is the sum of the 5th percentiles of claim, prepare and "
        "mark.",
    )
    histories = [rows for rows in HISTORIES if not options.is_quick] or [0, 10_000]
    if options.rows:
        histories[-1] = options.rows
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-store-")))
        cases = dict(_cases(stack, folder, options, histories))
        rounds = 10
        interleaved({name: _sample(case, BATCHES // rounds) for name, case in cases.items()}, rounds)
        _report_results(report, cases, histories[-1])
        _report_pruning(report, cases, histories[-1])
    return report


def _sample(case: Case, batches: int) -> Callable[[], float]:
    return lambda: case.run(batches)


def _cases(
    stack: ExitStack, folder: Path, options: Options, histories: list[int]
) -> Iterator[tuple[str, Case]]:
    for database in MS_MAX:
        if not options.wants(database):
            continue
        for history in histories:
            url = (
                f"sqlite:///{folder}/{history}/penstock.db"
                if database == "sqlite"
                else stack.enter_context(postgres_url())
            )
            store = stack.enter_context(open_store(url))
            store.register_stream(STREAM, "delta", "events", "t1")
            store.claim(STREAM, RUN)
            started = time.perf_counter()
            if history:
                an_hour_ago = datetime.now(timezone.utc) - timedelta(hours=1)
                add_history(store, manifest_of(history), history, an_hour_ago, "0" * 56)
            print_progress(
                f"  {database}: {history:,} batches of history in {time.perf_counter() - started:.0f} s"
            )
            yield f"{database}, {history:,}", Case(store, history)


# Manifests ------------------------------------------------------------------------------------------


def manifest_of(batch_id: int) -> Manifest:
    files = tuple(
        DataFile(
            f"penstock-{STREAM.query_id}-{RUN}-{batch_id:08d}-{task:05d}-0-0000.zstd.parquet",
            8_000_000,
            100_000,
            (),
            delta_statistics(batch_id),
        )
        for task in range(2)
    )
    content = LakeManifest("delta", "append", "t1", batch_id, '{"type":"struct","fields":[]}', (), (), files)
    digest = hashlib.sha256(str(batch_id).encode()).hexdigest()
    return build_manifest(Batch(STREAM, batch_id, digest), content)


# The page -------------------------------------------------------------------------------------------


def _report_results(report: Report, cases: dict[str, Case], history: int) -> None:
    for database, ms_max in MS_MAX.items():
        case = cases.get(f"{database}, {history:,}")
        if case is not None:
            what = f"{database}: prepare and mark after {history:,} batches, p50"
            report.bound(what, case.ms("sum", 0.5), "<=", ms_max, " ms")
    header = (
        "database, history",
        *(f"{part}: p50" for part in PARTS),
        "p95",
        "undisturbed",
        "processor time of the sum",
    )
    report.table(
        header,
        (
            (
                name,
                *(case.ms(part, 0.5) for part in PARTS),
                case.ms("sum", 0.95),
                case.undisturbed_ms,
                statistics.median(case.cpu) * 1000,
            )
            for name, case in cases.items()
        ),
    )


def _report_pruning(report: Report, cases: dict[str, Case], history: int) -> None:
    """Measure the time of the commits that delete old records of a long history."""
    rows = []
    for name, case in cases.items():
        if case.history == history:
            older_than = datetime.now(timezone.utc) - timedelta(days=7)
            taken = []
            for _ in range(10):
                started = time.perf_counter()
                deleted = case.store.deliveries.prune(STREAM, older_than, KEPT, BATCHES_PRUNED_MAX)
                taken.append((time.perf_counter() - started) * 1000)
            rows.append((name, deleted, statistics.median(taken), max(taken)))
    report.text(
        f"In a stream without a delivery process, old records are deleted after every hundredth batch, in "
        f"steps, until the newest {KEPT:,} batches are left. Milliseconds of a step:"
    )
    report.table(("database, history", "records deleted in a step", "median", "longest"), rows)
