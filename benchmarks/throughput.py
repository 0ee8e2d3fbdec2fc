"""Large batches: how many rows a second get through each sink, in one run.

Each sample is a query of its own into a new table: a batch of 100 rows first, then all rows in one batch.
What counts is that batch's whole time as Spark counts it, from listing the files to the checkpoint's entry.
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
from benchmarks.measure import Options, Samples, interleaved, medians, ratio, say
from benchmarks.report import Report, bars
from benchmarks.spark.process import CLUSTER, CORES, LOCAL, Peers, Spark, find_peers, started

ROWS, QUICK_ROWS = 6_001_215, 600_000
WARM_UP_ROWS = 100
"""Of the first batch of a query."""
WARM_UP = 1
"""Rounds that do not count."""

FLOOR = "empty-python-tuned"
"""What Spark has to do for any Python sink."""
FILES = "files-python"
"""And what Arrow has to do for one that writes such files."""
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
"""In this order: those that collect all rows leave gigabytes of garbage, which the floor may clear away."""
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
    """What is written, and where."""

    dataset: str
    master: str
    cores: int
    partitions: int = 1
    """Of the table."""

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
        "Each sink, with its defaults, gets the same files in one batch. The runs of all sinks are "
        f"interleaved; figures are medians of {options.repeat}. Spark is started with "
        "`penstock.START_SETTINGS`, which affect the hand-over to Python. `noop` is the lower limit. "
        "`empty-python` is a Python sink that receives the rows and does nothing; `-tuned` is the same "
        "without Spark's check of the Arrow batch's size after every row, and without Python's searches "
        f"before and after every task ([profiles](profiles.md)). `{FILES}` is the same sink, but writes "
        "the rows with Arrow into files like Penstock's, and does nothing else: no table, no commit, no "
        "checks, no statistics, no protection against crashes. `parquet-zstd` uses Penstock's codec "
        "instead of its default, snappy. TPC-H's lineitem has 16 columns, four of them decimals; the "
        f"flights have 19 and are repeated. There are always two tasks at a time. On {CORES} cores the "
        f"JVM and Python share them, as on a busy machine; with {2 * CORES}, cores are to spare, as often "
        "if a stream has fewer partitions than its cluster has cores. Time outside of tasks is planning "
        "and commit. `delta-spark` keeps its state in two partitions instead of its default of 50.",
    )
    possible = [place for place in PLACES if place.cores <= len(os.sched_getaffinity(0))]
    for place in possible[:1] if options.is_quick else possible:
        source = data.lineitem(rows) if place.dataset == "lineitem" else data.flights(rows)
        say(f"{place}: {source.rows:,} rows")
        measure(report, place, source, peers, options)
    if len(possible) < len(PLACES):
        report.text(f"Without cores to spare: this machine has not the {2 * CORES} that this would take.")
    if peers.why_not:
        report.text(peers.why_not)
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
    _tell(report, place, source, seconds, large)


class LargeBatches:
    """Runs a large batch through one sink after the other."""

    def __init__(self, spark: Spark, source: data.Source, folder: Path, partitions: int = 1) -> None:
        self._spark, self._source, self._folder, self._partitions = spark, source, folder, partitions
        self._numbers = itertools.count()
        self.batches: dict[str, list[dict[str, Any]]] = {}
        """What Spark said of each batch, and what it left behind."""
        self._warm_up = folder / "warm-up.parquet"
        pq.write_table(pq.read_table(source.files[0]).slice(0, WARM_UP_ROWS), self._warm_up)

    def run(self, sink: str) -> float:
        """Seconds."""
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


def _tell(report: Report, place: Place, source: data.Source, seconds: Samples, large: LargeBatches) -> None:
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
    _tell_limits(report, seconds)
    report.plot(f"Rows a second: {place}", bars(speeds, "million rows a second"), place.file_name)
    for ours, peer, least in TIMES_AS_FAST:
        if ours in seconds:
            report.bound(f"{place}: {ours}, times as fast as {peer}", ratio(seconds, peer, ours), ">=", least)


def _tell_limits(report: Report, seconds: Samples) -> None:
    """How far a Python sink can get in this run, about, and one that writes such files with Arrow."""
    at_most, with_arrow = ratio(seconds, PEER, FLOOR), ratio(seconds, PEER, FILES)
    if at_most is None or with_arrow is None:
        return
    ours = [
        f"`{case}` takes {times:.2f} times as long" for case in OURS if (times := ratio(seconds, case, FILES))
    ]
    report.text(
        f"`{FLOOR}` is {at_most:.2f} times as fast as `{PEER}`, and `{FILES}` {with_arrow:.2f} times. Beside "
        f"`{FILES}` {' and '.join(ours)}."
    )
