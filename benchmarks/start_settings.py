"""Measures `penstock.START_SETTINGS`: a large batch in Spark sessions with and without them."""

from __future__ import annotations

import statistics
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import data
from benchmarks.measure import Options, Samples, interleaved, medians, print_progress, ratio
from benchmarks.report import Report
from benchmarks.spark.process import LOCAL, Peers, Spark, find_peers, started
from benchmarks.throughput import LargeBatches

import penstock

ROWS, QUICK_ROWS = 2_000_000, 600_000
WARM_UP = 2
"""Rounds that are not counted."""
SINK = "penstock.delta"

SOCKETS = "spark.python.unix.domain.socket.enabled"
NONE, BOTH = "neither", "both"
WITHOUT = {
    NONE: tuple(penstock.START_SETTINGS),
    "Unix domain sockets": tuple(key for key in penstock.START_SETTINGS if key != SOCKETS),
    "no checks of bounds": (SOCKETS,),
    BOTH: (),
}
"""The settings that each Spark does not have."""
AS_SPARK_HAS_IT = {**dict.fromkeys(penstock.START_SETTINGS, ""), SOCKETS: "false"}


def run(options: Options) -> Report:
    rows = options.rows or (QUICK_ROWS if options.is_quick else ROWS)
    peers = find_peers()
    report = Report(
        "start_settings",
        "Settings for starting Spark",
        f"About {rows:,} rows in one batch of a stream into `{SINK}`, {LOCAL}. Each case has a separate "
        f"Spark, with or without the two parts of `penstock.START_SETTINGS`. Medians of {options.repeat} "
        "interleaved runs. Processor seconds include a batch of 100 rows before.",
    )
    for dataset, source in (("lineitem", data.lineitem(rows)), ("flights", data.flights(rows))):
        print_progress(f" {dataset}")
        _measure(report, dataset, source, peers, options)
    return report


def _measure(report: Report, dataset: str, source: data.Source, peers: Peers, options: Options) -> None:
    processor_s: dict[str, list[tuple[float, float]]] = {case: [] for case in WITHOUT}
    with ExitStack() as stack:
        cases = {}
        for case, missing in WITHOUT.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
            spark = stack.enter_context(started(LOCAL, peers, {key: AS_SPARK_HAS_IT[key] for key in missing}))
            report.machine = spark.machine
            large = LargeBatches(spark, source, Path(folder))
            cases[case] = partial(_batch, spark, large, processor_s[case])
        seconds = interleaved(cases, options.repeat, warm_up=WARM_UP)
    report.text(f"## {dataset}: {source.rows:,} rows")
    _report_results(report, seconds, processor_s)


def _batch(spark: Spark, large: LargeBatches, processor_s: list[tuple[float, float]]) -> float:
    """Run the batch, record its processor time, and return its seconds."""
    jvm_before, python_before = spark.processor_s()
    seconds = large.run(SINK)
    jvm, python = spark.processor_s()
    processor_s.append((jvm - jvm_before, python - python_before))
    return seconds


def _report_results(
    report: Report, seconds: Samples, processor_s: dict[str, list[tuple[float, float]]]
) -> None:
    middle = medians(seconds)
    rows = []
    for case in seconds:
        jvm, python = (statistics.median(runs) for runs in zip(*processor_s[case][WARM_UP:], strict=True))
        rows.append((case, middle[case], ratio(seconds, NONE, case), jvm, python))
    report.table(("", "seconds", "times as fast", "processor: JVM, s", "Python, s"), rows)
