"""Large batches: how many rows a second get through each sink, in one run.

Each sample is a query of its own into a new table: a batch of 100 rows first, then all rows in one batch.
What counts is that batch's whole time as Spark counts it, from listing the files to the checkpoint's entry.
"""

from __future__ import annotations

import itertools
import re
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from benchmarks import data
from benchmarks.measure import Options, Samples, interleaved, medians, ratio, say
from benchmarks.report import Report, bars
from benchmarks.spark.process import CLUSTER, LOCAL, Peers, Spark, find_peers, started

ROWS, QUICK_ROWS = 6_001_215, 600_000
WARM_UP_ROWS = 100
"""Of the first batch of a query."""
WARM_UP = 1
"""Rounds that do not count."""

FLOOR = "empty-python-tuned"
"""What Spark has to do for any Python sink."""
CASES = (
    "noop",
    "empty-python",
    FLOOR,
    "parquet",
    "delta-spark",
    "iceberg-spark",
    "foreach-deltalake",
    "foreach-pyiceberg",
    "penstock.delta",
    "penstock.iceberg",
)
TIMES_AS_FAST = (
    ("penstock.delta", "parquet", 1.4),
    ("penstock.iceberg", "parquet", 1.4),
    ("penstock.delta", "delta-spark", 2),
    ("penstock.iceberg", "iceberg-spark", 2),
    ("penstock.delta", "foreach-deltalake", 3),
    ("penstock.iceberg", "foreach-pyiceberg", 3),
)


def run(options: Options) -> Report:
    rows = options.rows or (QUICK_ROWS if options.is_quick else ROWS)
    peers = find_peers()
    report = Report(
        "throughput",
        "Throughput of large batches",
        "Each sink, with its defaults, gets the same files in one batch; the runs of all are interleaved, "
        f"and what is told are medians of {options.repeat}. Spark is started with `penstock.START_SETTINGS`, "
        "which is for the way to Python. `noop` is the floor, `empty-python` a Python sink that takes the "
        "rows and does nothing, and `-tuned` the same without Spark's check of the Arrow batch's size after "
        "every row, and without what Python searches before and after every task ([profiles](profiles.md)). "
        "TPC-H's lineitem has 16 columns, four of them decimals; the flights have 19, and are repeated. What "
        "is not spent in tasks is planning and commit. `delta-spark` keeps its state in two partitions "
        "instead of its default of 50.",
    )
    places = [("lineitem", LOCAL), ("lineitem", CLUSTER), ("flights", LOCAL)]
    for dataset, master in places[:1] if options.is_quick else places:
        source = data.lineitem(rows) if dataset == "lineitem" else data.flights(rows)
        say(f"{dataset}, {master}: {source.rows:,} rows")
        _measure(report, f"{dataset}, {master}", source, master, peers, options)
    if peers.why_not:
        report.text(peers.why_not)
    return report


def _measure(
    report: Report, place: str, source: data.Source, master: str, peers: Peers, options: Options
) -> None:
    cases = [case for case in CASES if options.wants(case) and peers.has(case)]
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, started(master, peers) as spark:
        report.machine = spark.machine
        large = LargeBatches(spark, source, Path(folder))
        seconds = interleaved(
            {case: partial(large.run, case) for case in cases}, options.repeat, warm_up=WARM_UP
        )
    report.text(f"## {place}: {source.rows:,} rows")
    _tell(report, place, source, seconds, large)


class LargeBatches:
    """Runs a large batch through one sink after the other."""

    def __init__(self, spark: Spark, source: data.Source, folder: Path) -> None:
        self._spark, self._source, self._folder = spark, source, folder
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
        )
        self.batches.setdefault(sink, []).append(batch)
        return float(batch["triggerExecution"]) / 1000


def _tell(report: Report, place: str, source: data.Source, seconds: Samples, large: LargeBatches) -> None:
    middle = medians(seconds)
    speeds = {case: source.rows / one / 1e6 for case, one in middle.items()}
    rows = []
    for case in seconds:
        batches = large.batches[case][WARM_UP:]
        in_tasks = statistics.median(batch["tasks"] for batch in batches) / 1000
        times = ratio(seconds, "parquet", case)
        size = batches[-1]["bytes"] / 1e6
        rows.append((f"`{case}`", middle[case], in_tasks, speeds[case], times, size, batches[-1]["files"]))
    report.table(
        ("sink", "seconds", "in tasks", "million rows/s", "times as fast as parquet", "MB", "files"), rows
    )
    if FLOOR in seconds:
        report.text(
            "Spark's conversion to Arrow and the way to Python alone, with two cores for both, make "
            f"`{FLOOR}` {ratio(seconds, 'parquet', FLOOR) or 1:.2f} times as fast as `parquet`: more than "
            "that no Python sink can be here."
        )
    suffix = "-".join(re.findall(r"[a-z-]+", place))
    report.plot(f"Rows a second: {place}", bars(speeds, "million rows a second"), suffix)
    for ours, peer, least in TIMES_AS_FAST:
        if ours in seconds:
            report.bound(f"{place}: {ours}, times as fast as {peer}", ratio(seconds, peer, ours), ">=", least)
