"""How many rows of an Arrow batch are best on their way from the JVM to a Python sink."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from benchmarks import data
from benchmarks.measure import Options, interleaved, medians, ratio
from benchmarks.report import Report, bars
from benchmarks.spark.process import LOCAL, find_peers, started
from benchmarks.throughput import WARM_UP, LargeBatches

ROWS, QUICK_ROWS = 2_000_000, 600_000
AS_SPARK_CUTS = "as Spark cuts"
CASES = (AS_SPARK_CUTS, "250 rows", "500 rows", "1,000 rows", "2,000 rows", "10,000 rows")


def run(options: Options) -> Report:
    rows = options.rows or (QUICK_ROWS if options.is_quick else ROWS)
    report = Report(
        "arrow_batches",
        "Rows of an Arrow batch",
        f"{rows:,} rows of lineitem in one batch of a stream into `penstock.delta`, {LOCAL} with a heap of "
        f"4 GB; medians of {options.repeat} interleaved runs. Spark by itself ends an Arrow batch at 10,000 "
        "rows or at a size, for which it asks every column after every row; the other lines are without a "
        "size. `penstock.register` sets 500 rows for each GiB of heap, 2,000 at most.",
    )
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        started(LOCAL, find_peers()) as spark,
    ):
        report.machine = spark.machine
        large = LargeBatches(spark, data.lineitem(rows), Path(folder))
        cases = {case: partial(large.run, case) for case in CASES if options.wants(case)}
        seconds = interleaved(cases, options.repeat, warm_up=WARM_UP)
    speeds = {case: rows / one / 1e6 for case, one in medians(seconds).items()}
    report.table(
        ("Arrow batches", "seconds", "million rows/s", "times as fast as Spark cuts"),
        (
            (case, one, speeds[case], ratio(seconds, AS_SPARK_CUTS, case))
            for case, one in medians(seconds).items()
        ),
    )
    report.plot("Rows a second, by the rows of an Arrow batch", bars(speeds, "million rows a second"))
    return report
