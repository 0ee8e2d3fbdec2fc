"""What a batch's commit costs as the table's history grows, and what a commit of very many files costs.

Batches of 8 files go into a table on the local disk, with a SQLite store beside it and default settings. The
data files are never opened by a commit, so none are written; their entries carry statistics of 10 columns.
Each commit is timed as a whole as the driver does it (look, prepare, table commit, mark, maintenance) and in
its parts. Beside it, in turn and on the same table, the floor: the same files committed by the table's
library alone, as a user would call it, without token, store or checks.
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

from benchmarks.measure import Options, peak_memory_of, say
from benchmarks.report import Report, lines
from benchmarks.streams import FORMATS, Spent, Stream, named_files, sink_of

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
    ("cpu", "processor time of it"),
    ("floor", "the library alone"),
    ("floor_cpu", "processor time of it"),
)


@dataclass
class Stage:
    """What was measured after so many earlier commits, in seconds."""

    earlier: int
    ours: list[Spent] = field(default_factory=list)
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
        f"{SAMPLES} commits, in turn with as many of the same files by the library alone (`deltalake`: load, "
        "`create_write_transaction`; `pyiceberg`: `load_table`, a `fast_append` of the files). Of a "
        f"long history, all but {REAL_COMMITS} commits are fast-forwarded: Delta's are written into its log, "
        "Iceberg's files come in larger commits. Compared is processor time: waits for the disk do not "
        "grow, and other programs do not change it.",
    )
    earlier = [count for count in EARLIER if count <= (options.rows or max(EARLIER))]
    earlier = earlier[:2] if options.is_quick else earlier
    for kind in FORMATS:
        if options.wants(kind):
            with tempfile.TemporaryDirectory(prefix="bench-commits-") as folder:
                _tell_growth(report, kind, measure(kind, Path(folder), earlier))
            with tempfile.TemporaryDirectory(prefix="bench-commits-") as folder:
                _tell_many(report, kind, Path(folder), 1000 if options.is_quick else MANY_FILES)
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
        say(f"  {kind} after {count:,}: {ours:.1f} ms, the library alone {floor:.1f}")
        stages.append(stage)
    return stages


def fill(kind: str, stream: Stream, commits: int) -> None:
    """Bring the table to what it is after so many commits, most of them fast-forwarded.

    Delta's are written into its log as the stream's last one was, then the library makes a log checkpoint.
    Iceberg's files come in commits of many files each; of these commits nothing is left but the files once
    enough others have followed.
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
    from penstock.datasource.batch_plan import BatchPlan

    return BatchPlan(Batch(stream.key, stream.next_batch, ""))


def _commit_by_pyiceberg(stream: Stream) -> None:
    from penstock.committers.iceberg.catalog import open_catalog

    commit_by_pyiceberg(stream, open_catalog(stream.sink.catalog), "bench.t")


LIBRARIES = {"delta": commit_by_deltalake, "iceberg": _commit_by_pyiceberg}


def _tell_growth(report: Report, kind: str, stages: Sequence[Stage]) -> None:
    first, last = stages[0], stages[-1]

    def ratio(part: str) -> float:
        return last.median_ms(part) / max(first.median_ms(part), 0.01)

    report.bound(
        f"{kind}: commit after {last.earlier:,} commits, of that after {first.earlier}",
        ratio("cpu"),
        "<=",
        RATIO_MAX,
        " times",
    )
    report.text(f"## {kind.title()}\n\nMilliseconds after so many earlier commits.")
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


def _tell_many(report: Report, kind: str, folder: Path, files: int) -> None:
    many = _in_a_process(kind, str(folder), files)
    report.bound(f"{kind}: commit of {files:,} files, processor", many.cpu_s, "<=", MANY_S_MAX, " s")
    report.bound(f"{kind}: memory for it above idle", many.more_bytes / MB, "<=", MANY_MB_MAX, " MB")
    report.text(
        f"{kind}: the commit of {files:,} files took {many.seconds:.1f} s by the clock of this machine."
    )


@dataclass(frozen=True)
class Many:
    """A commit of many files, in a process of its own."""

    seconds: float
    cpu_s: float
    more_bytes: int
    """Above what the process held before."""


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
