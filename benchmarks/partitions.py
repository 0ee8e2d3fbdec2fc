"""Measures large batches into a partitioned table, where each task has rows of all table partitions."""

from __future__ import annotations

import os

from benchmarks import data, throughput
from benchmarks.measure import Options, print_progress
from benchmarks.report import Report
from benchmarks.spark.process import CORES, LOCAL, find_peers
from benchmarks.throughput import FLOOR, QUICK_ROWS, ROWS, Place, measure

PARTITIONS = 200
CASES = tuple(
    case for case in throughput.CASES if case not in ("noop", "empty-python", "files-python", "parquet-zstd")
)
PLACES = tuple(Place("lineitem", LOCAL, cores, PARTITIONS) for cores in (CORES, 2 * CORES))


def run(options: Options) -> Report:
    peers = find_peers()
    report = Report(
        "partitions",
        "Throughput into a partitioned table",
        f"Like [throughput](throughput.md), into a new table of {PARTITIONS} partitions by a hash of the "
        f"row, so each task has rows of all partitions. `{FLOOR}` drops the rows. Spark's own sinks sort "
        "each task's rows by partition. Iceberg's has `fanout-enabled` and sends the rows of a partition to "
        f"one task. Medians of {options.repeat} interleaved runs.",
    )
    source = data.lineitem(options.rows or (QUICK_ROWS if options.is_quick else ROWS))
    for place in PLACES:
        if place.cores <= len(os.sched_getaffinity(0)):
            print_progress(f"{place}: {source.rows:,} rows")
            measure(report, place, source, peers, options, CASES)
    if peers.missing_reason:
        report.text(peers.missing_reason)
    return report
