"""Measures the rows per second of each sink with large batches.

Each sample is a separate query into a new table: first a batch of 100 rows, then all rows in one batch. The
result is the whole time of the second batch in Spark's progress, from the list of files to the commits log.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from benchmarks import data
from benchmarks.measure import Options, Samples, interleaved, medians, print_progress, ratio
from benchmarks.report import Report, bars
from benchmarks.spark.process import CLUSTER, CORES, LOCAL, Peers, Spark, find_peers, started

ROWS, QUICK_ROWS = 6_001_215, 600_000
WARM_UP_ROWS = 100
"""Rows of the first batch of a query."""
WARM_UP = 1
"""Rounds that are not counted."""

FLOOR = "empty-python-tuned"
"""The minimal work of Spark for a Python sink."""
FILES = "files-python"
"""The same, and Arrow's work to write the files."""
PEER = "parquet"
CASES = (
    "noop",
    "empty-python",
    FLOOR,
    FILES,
    PEER,
    "parquet-zstd",
    "delta-spark",
    "iceberg-spark",
    "penstock.delta",
    "penstock.iceberg",
    "foreach-deltalake",
    "foreach-pyiceberg",
)
"""Sinks that collect all rows come last, because they leave gigabytes of garbage."""
OURS = ("penstock.delta", "penstock.iceberg")
TIMES_AS_FAST = (
    ("penstock.delta", PEER, 1.4),
    ("penstock.iceberg", PEER, 1.4),
    ("penstock.delta", "delta-spark", 2),
    ("penstock.iceberg", "iceberg-spark", 2),
    ("penstock.delta", "foreach-deltalake", 3),
    ("penstock.iceberg", "foreach-pyiceberg", 3),
)


@dataclass(frozen=True)
class Place:
    """Dataset, Spark master, cores and partitions of a measurement."""

    dataset: str
    master: str
    cores: int
    partitions: int = 1
    """Partitions of the table."""

    def __str__(self) -> str:
        into = f" into {self.partitions} partitions" if self.partitions > 1 else ""
        return f"{self.dataset}{into}, {self.master}, {self.cores} cores"

    @property
    def file_name(self) -> str:
        return f"{self.dataset}-{self.master.partition('[')[0]}-{self.cores}-cores"


PLACES = tuple(
    Place(dataset, master, cores)
    for cores in (CORES, 2 * CORES)
    for dataset, master in (("lineitem", LOCAL), ("lineitem", CLUSTER), ("flights", LOCAL))
)


def run(options: Options) -> Report:
    rows = options.rows or (QUICK_ROWS if options.is_quick else ROWS)
    peers = find_peers()
    report = Report(
        "throughput",
        "Throughput of large batches",
        "Each sink, with its defaults, receives the same files in one batch. The runs of all sinks are "
        f"interleaved; figures are medians of {options.repeat}. Spark is started with "
        "`penstock.START_SETTINGS`, which affect the transfer to Python. `noop` is the lower limit. "
        "`empty-python` is a Python sink that receives the rows and does nothing; `-tuned` is the same "
        "without Spark's check of the Arrow batch's size after every row, and without Python's searches "
        f"before and after every task ([profiles](profiles.md)). `{FILES}` is the same sink, but writes "
        "the rows with Arrow into files like Penstock's, and does nothing else: no table, no commit, no "
        "checks, no statistics, no protection against crashes. `parquet-zstd` uses Penstock's codec "
        "instead of its default, snappy. TPC-H's lineitem has 16 columns, four of them decimals; the "
        f"flights have 19 and are repeated. Two tasks run at a time. On {CORES} cores the JVM and Python "
        f"share the cores, as on a busy machine. With {2 * CORES} cores some are free, as is usual if a "
        "stream has fewer partitions than its cluster has cores. Time outside of tasks is planning and "
        "commit. `delta-spark` keeps its state in two partitions instead of its default of 50.",
    )
    possible = [place for place in PLACES if place.cores <= len(os.sched_getaffinity(0))]
    for place in possible[:1] if options.is_quick else possible:
        source = data.lineitem(rows) if place.dataset == "lineitem" else data.flights(rows)
        print_progress(f"{place}: {source.rows:,} rows")
        measure(report, place, source, peers, options)
    if len(possible) < len(PLACES):
        report.text(f"Not measured with free cores: this needs {2 * CORES} cores.")
    if peers.missing_reason:
        report.text(peers.missing_reason)
    return report


def measure(
    report: Report,
    place: Place,
    source: data.Source,
    peers: Peers,
    options: Options,
    cases: Sequence[str] = CASES,
) -> None:
    cases = [case for case in cases if options.wants(case) and peers.has(case)]
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        started(place.master, peers, cores=place.cores) as spark,
    ):
        report.machine = spark.machine
        large = LargeBatches(spark, source, Path(folder), place.partitions)
        seconds = interleaved(
            {case: partial(large.run, case) for case in cases}, options.repeat, warm_up=WARM_UP
        )
    report.text(f"## {place}: {source.rows:,} rows")
    _report_results(report, place, source, seconds, large)


class LargeBatches:
    """Runs a large batch through each sink in turn."""

    def __init__(self, spark: Spark, source: data.Source, folder: Path, partitions: int = 1) -> None:
        self._spark, self._source, self._folder, self._partitions = spark, source, folder, partitions
        self._numbers = itertools.count()
        self.batches: dict[str, list[dict[str, Any]]] = {}
        """Spark's progress of each batch, with the number and size of its files."""
        self._warm_up = folder / "warm-up.parquet"
        pq.write_table(pq.read_table(source.files[0]).slice(0, WARM_UP_ROWS), self._warm_up)

    def run(self, sink: str) -> float:
        """Return the seconds of the batch."""
        batch: dict[str, Any] = self._spark.call(
            "large_batch",
            sink=sink,
            warm_up=[self._warm_up],
            files=self._source.files,
            rows=self._source.rows,
            folder=self._folder / f"table_{next(self._numbers)}",
            partitions=self._partitions,
        )
        self.batches.setdefault(sink, []).append(batch)
        return float(batch["triggerExecution"]) / 1000


def _report_results(
    report: Report, place: Place, source: data.Source, seconds: Samples, large: LargeBatches
) -> None:
    middle = medians(seconds)
    speeds = {case: source.rows / one / 1e6 for case, one in middle.items()}
    rows = []
    for case in seconds:
        batches = large.batches[case][WARM_UP:]
        in_tasks = statistics.median(batch["tasks"] for batch in batches) / 1000
        times = ratio(seconds, PEER, case)
        size = batches[-1]["bytes"] / 1e6
        rows.append((f"`{case}`", middle[case], in_tasks, speeds[case], times, size, batches[-1]["files"]))
    report.table(
        ("sink", "seconds", "in tasks", "million rows/s", "times as fast as parquet", "MB", "files"), rows
    )
    _report_limits(report, seconds)
    report.plot(f"Rows per second: {place}", bars(speeds, "million rows a second"), place.file_name)
    for ours, peer, least in TIMES_AS_FAST:
        if ours in seconds:
            report.bound(f"{place}: {ours}, times as fast as {peer}", ratio(seconds, peer, ours), ">=", least)


def _report_limits(report: Report, seconds: Samples) -> None:
    """Report the approximate limits of a Python sink, without and with Arrow's file encoding."""
    at_most, with_arrow = ratio(seconds, PEER, FLOOR), ratio(seconds, PEER, FILES)
    if at_most is None or with_arrow is None:
        return
    ours = [
        f"`{case}` takes {times:.2f} times as long" for case in OURS if (times := ratio(seconds, case, FILES))
    ]
    report.text(
        f"`{FLOOR}` is {at_most:.2f} times as fast as `{PEER}`, and `{FILES}` {with_arrow:.2f} times. "
        f"Compared with `{FILES}`, {' and '.join(ours)}."
    )
