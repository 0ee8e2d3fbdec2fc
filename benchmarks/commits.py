"""Measures the cost of a commit as the table's history grows, and of a commit of many files.

Batches of 8 files go into a table on the local disk, with a SQLite store and default settings. No commit
opens the data files, so they are not written; their entries have statistics of 10 columns. The benchmark
measures each commit of the driver (read, prepare, table commit, mark, maintenance) as a whole and by step. It
alternates with the floor on the same table: a commit of the same files by the table library alone, without
token, store or checks.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import Options, peak_memory_of, print_progress
from benchmarks.report import Report, lines
from benchmarks.streams import FORMATS, BatchTimes, Stream, named_files, sink_of

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

EARLIER = (10, 100, 1000, 10_000)
SAMPLES = 15
FILES = 8
REAL_COMMITS = 200
FILES_AT_ONCE = 800
RATIO_MAX = 3.0
MANY_FILES, MANY_S_MAX, MANY_MB_MAX = 10_000, 2.0, 300
MB = 1024**2
PARTS = (
    ("plan", "plan, before the write"),
    ("table", "commit: the table's own"),
    ("store", "commit: prepare and mark"),
    ("maintain", "commit: maintenance"),
    ("commit", "commit as a whole"),
    ("cpu", "commit: processor time"),
    ("floor", "the library alone"),
    ("floor_cpu", "the library alone: processor time"),
)


@dataclass
class Stage:
    """Seconds measured after a number of earlier commits."""

    earlier: int
    ours: list[BatchTimes] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    floor_cpu: list[float] = field(default_factory=list)

    def samples(self, part: str) -> list[float]:
        if part in ("floor", "floor_cpu"):
            return self.floor if part == "floor" else self.floor_cpu
        return [getattr(spent, part) for spent in self.ours]

    def median_ms(self, part: str) -> float:
        return statistics.median(self.samples(part)) * 1000


def run(options: Options) -> Report:
    report = Report(
        "commits",
        "What a commit costs as a table grows",
        f"Batches of {FILES} files into a table on the local disk, with default settings; medians of "
        f"{SAMPLES} commits. They alternate with commits of the same files by the library alone "
        "(`deltalake`: load, `create_write_transaction`; `pyiceberg`: `load_table`, a `fast_append` of the "
        f"files). A long history has {REAL_COMMITS} real commits; the others are generated: for Delta as "
        "entries of the log, for Iceberg as larger commits of all files. The target applies to processor "
        "time, because waits for the disk do not grow, and other programs do not affect it.",
    )
    earlier = [count for count in EARLIER if count <= (options.rows or max(EARLIER))]
    earlier = earlier[:2] if options.is_quick else earlier
    for kind in FORMATS:
        if options.wants(kind):
            with tempfile.TemporaryDirectory(prefix="bench-commits-") as folder:
                _report_growth(report, kind, measure(kind, Path(folder), earlier))
            with tempfile.TemporaryDirectory(prefix="bench-commits-") as folder:
                _report_many_files(report, kind, Path(folder), 1000 if options.is_quick else MANY_FILES)
    return report


# A growing table -------------------------------------------------------------------------------------


def measure(kind: str, folder: Path, earlier: Sequence[int]) -> list[Stage]:
    stream, write = Stream(sink_of(kind, folder)), named_files(kind, FILES)
    stages = []
    for count in earlier:
        fill(kind, stream, count)
        stage = Stage(count)
        for _ in range(SAMPLES):
            stage.ours.append(stream.run(write))
            started, started_cpu = time.perf_counter(), time.process_time()
            LIBRARIES[kind](stream)
            stage.floor.append(time.perf_counter() - started)
            stage.floor_cpu.append(time.process_time() - started_cpu)
        ours, floor = stage.median_ms("commit"), stage.median_ms("floor")
        print_progress(f"  {kind} after {count:,}: {ours:.1f} ms, the library alone {floor:.1f}")
        stages.append(stage)
    return stages


def fill(kind: str, stream: Stream, commits: int) -> None:
    """Create the state of the table after this number of commits; most of them are generated.

    For Delta, copies of the stream's last log entry are written, then the library writes a log checkpoint.
    For Iceberg, the files are committed in larger commits, whose snapshots expire after enough later commits.
    """
    write = named_files(kind, FILES)
    while stream.next_batch < min(commits, REAL_COMMITS):
        stream.run(write)
    if kind == "delta":
        _fill_log(stream, commits)
    elif commits > 2 * REAL_COMMITS:
        files = (commits - 2 * REAL_COMMITS) * FILES
        for _ in range(files // FILES_AT_ONCE):
            stream.run(named_files(kind, FILES_AT_ONCE))
        for _ in range(REAL_COMMITS):
            stream.run(write)


def _fill_log(stream: Stream, commits: int) -> None:
    from deltalake import DeltaTable

    log = Path(stream.sink.table_uri, "_delta_log")
    version = DeltaTable(stream.sink.table_uri).version()
    actions = [json.loads(line) for line in (log / f"{version:020d}.json").read_text().splitlines()]
    kept = [one for one in actions if "txn" not in one]
    for number in range(version + 1, commits + 1):
        entry = [json.dumps(_renumbered(one, number)) for one in kept]
        (log / f"{number:020d}.json").write_text("\n".join(entry))
    if version < commits:
        DeltaTable(stream.sink.table_uri).create_checkpoint()


def _renumbered(action: dict[str, Any], number: int) -> dict[str, Any]:
    if "add" not in action:
        return action
    return {"add": {**action["add"], "path": f"filled-{number:08d}-{action['add']['path']}"}}


def commit_by_deltalake(stream: Stream, file_count: int = FILES) -> None:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    files = named_files("delta", file_count)(_plan_of(stream))
    table = DeltaTable(stream.sink.table_uri, storage_options=dict(stream.sink.options.storage_options))
    table.create_write_transaction(
        [
            AddAction(f"floor-{time.time_ns()}-{file.path}", file.size_bytes, {}, 0, True, file.statistics)
            for file in files
        ],
        mode="append",
        schema=table.schema(),
        partition_by=[],
    )


def commit_by_pyiceberg(stream: Stream, catalog: Catalog, name: str, file_count: int = FILES) -> None:
    from penstock.committers.iceberg.data_files import iceberg_data_files

    files = named_files("iceberg", file_count)(_plan_of(stream))
    table = catalog.load_table(name)
    location = f"{table.location()}/floor-{time.time_ns()}"
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in iceberg_data_files(files, location, table.spec(), table.schema()):
            append.append_data_file(file)


def _plan_of(stream: Stream) -> Any:
    from penstock.committers.contract import Batch
    from penstock.datasource.planning.batch_plan import BatchPlan

    return BatchPlan(Batch(stream.key, stream.next_batch, ""))


def _commit_by_pyiceberg(stream: Stream) -> None:
    from penstock.committers.iceberg.catalog import open_catalog

    commit_by_pyiceberg(stream, open_catalog(stream.sink.catalog), "bench.t")


LIBRARIES = {"delta": commit_by_deltalake, "iceberg": _commit_by_pyiceberg}


def _report_growth(report: Report, kind: str, stages: Sequence[Stage]) -> None:
    first, last = stages[0], stages[-1]

    def ratio(part: str) -> float:
        return last.median_ms(part) / max(first.median_ms(part), 0.01)

    report.bound(
        f"{kind}: commit after {last.earlier:,} commits, relative to after {first.earlier}",
        ratio("cpu"),
        "<=",
        RATIO_MAX,
        " times",
    )
    report.text(f"## {kind.title()}\n\nMilliseconds by number of earlier commits.")
    header = ("", *(f"{stage.earlier:,}" for stage in stages), "ratio", "slowest")
    report.table(
        header,
        (
            (
                what,
                *(stage.median_ms(part) for stage in stages),
                ratio(part) if part != "maintain" else None,
                max(sample for stage in stages for sample in stage.samples(part)) * 1000,
            )
            for part, what in PARTS
        ),
    )
    series = {
        f"{kind}: {what}": ([stage.earlier for stage in stages], [stage.median_ms(part) for stage in stages])
        for part, what in PARTS
        if part in ("plan", "table", "store", "commit", "floor")
    }
    report.plot(
        f"{kind}: milliseconds by earlier commits", lines(series, "earlier commits", "ms", is_log=True), kind
    )


# A commit of many files -------------------------------------------------------------------------------


def _report_many_files(report: Report, kind: str, folder: Path, files: int) -> None:
    many = _in_a_process(kind, str(folder), files)
    report.bound(f"{kind}: processor time of a commit of {files:,} files", many.cpu_s, "<=", MANY_S_MAX, " s")
    report.bound(f"{kind}: memory of it, above idle", many.more_bytes / MB, "<=", MANY_MB_MAX, " MB")
    report.text(f"{kind}: the commit of {files:,} files took {many.seconds:.1f} s of wall-clock time.")


@dataclass(frozen=True)
class Many:
    """Results of a commit of many files in a separate process."""

    seconds: float
    cpu_s: float
    more_bytes: int
    """Memory above that before the commit."""


def _in_a_process(kind: str, folder: str, files: int) -> Many:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_commit_many, (kind, folder, files))


def _commit_many(kind: str, folder: str, files: int) -> Many:
    stream = Stream(sink_of(kind, Path(folder)))
    for _ in range(3):
        stream.run(named_files(kind, FILES))
    idle = peak_memory_of("self")
    spent = stream.run(named_files(kind, files))
    return Many(spent.commit, spent.cpu, peak_memory_of("self") - idle)
