"""Measures which number of rows per Arrow batch is fastest from the JVM to a Python sink."""

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
        "Rows per Arrow batch",
        f"{rows:,} rows of lineitem in one batch of a stream into `penstock.delta`, {LOCAL} with a heap of "
        f"4 GB; medians of {options.repeat} interleaved runs. By default Spark ends an Arrow batch at 10,000 "
        "rows or at a size limit, and computes the size of every column after every row. The other lines "
        "have no size limit. `penstock.register` sets 500 rows for each GiB of heap, at most 2,000.",
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
        ("Arrow batches", "seconds", "million rows/s", "times as fast as Spark's default"),
        (
            (case, one, speeds[case], ratio(seconds, AS_SPARK_CUTS, case))
            for case, one in medians(seconds).items()
        ),
    )
    report.plot("Rows per second, by the rows of an Arrow batch", bars(speeds, "million rows a second"))
    return report
