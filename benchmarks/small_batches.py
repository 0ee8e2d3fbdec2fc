"""Measures small batches: their cost, and the first one after a pause."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import data
from benchmarks.measure import Options, Samples, interleaved, medians, print_progress, ratio
from benchmarks.report import Report, bars
from benchmarks.spark.process import LOCAL, Peers, Spark, find_peers, started

ROWS = 100
FILES, WARM_UP_FILES = 40, 10
WARM_UP = 1
"""Rounds that are not counted."""
FLOOR = "empty-python-tuned"
"""The minimal work of Spark for a Python sink."""
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
OURS = ("penstock.delta", "penstock.iceberg")
OF_DELTA_MAX, OF_ICEBERG_MAX, OVER_EMPTY_MS_MAX = 0.5, 0.4, 45

PAUSE_S, QUICK_PAUSE_S = 120, 70
"""Spark ends idle Python workers after a minute."""
AFTER_PAUSE_S_MAX = 2
QUIET = {"spark.sql.streaming.pollingDelay": "200ms", "spark.driver.memory": "1g"}
"""Reduces the load of queries that wait for files."""
PAUSED = ("empty-python", *OURS)
STEPS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")


def run(options: Options) -> Report:
    peers = find_peers()
    report = Report(
        "small_batches",
        "Small batches",
        f"A stream of real flights with {ROWS} rows per batch, as fast as each sink accepts them: {FILES} "
        f"batches per run; the first {WARM_UP_FILES} are not counted. The runs of all sinks are interleaved. "
        f"Figures are medians of {options.repeat} runs, each represented by its median batch. "
        "`empty-python` is a Python sink that does nothing. `-tuned` is the same without Python's search of "
        "Spark's archives before every task, and its garbage collection of all modules after it "
        "([profiles](profiles.md#small-batches)). If another sink has used the same Python processes, "
        "both are without them. Processor time is milliseconds of a batch in all threads, with the start "
        "and the end of the query; for Python, of the processes that Spark keeps. "
        "`delta-spark` keeps its state in two partitions instead of its default of 50.",
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        _consecutive_batches(report, peers, options, Path(folder))
        _after_a_pause(report, peers, options, Path(folder))
    if peers.missing_reason:
        report.text(peers.missing_reason)
    return report


# Consecutive batches --------------------------------------------------------------------------------


def _consecutive_batches(report: Report, peers: Peers, options: Options, folder: Path) -> None:
    source = data.small_files(FILES, ROWS)
    cases = [case for case in CASES if options.wants(case) and peers.has(case)]
    with started(LOCAL, peers) as spark:
        report.machine = spark.machine
        small = SmallBatches(spark, source, folder)
        ms = interleaved({case: partial(small.run, case) for case in cases}, options.repeat, warm_up=WARM_UP)
    middle = medians(ms)
    report.table(
        ("sink", "median batch, ms", *(f"`{step}`" for step in STEPS), "processor, JVM", "processor, Python"),
        ((f"`{case}`", middle[case], *small.steps(case), *small.processor_ms(case)) for case in cases),
    )
    if (floor := ratio(ms, "noop", "iceberg-spark")) is not None:
        report.text(
            f"`noop`, which writes nothing, takes {floor:.2f} of `iceberg-spark`'s time: this is the lower "
            "limit."
        )
    report.plot("The median batch of each sink", bars(middle, "milliseconds of a batch"))
    for ours, peer, most in (
        (OURS[0], "delta-spark", OF_DELTA_MAX),
        (OURS[1], "iceberg-spark", OF_ICEBERG_MAX),
    ):
        if ours in ms:
            report.bound(f"{ours}: median batch, relative to {peer}", ratio(ms, ours, peer), "<=", most)
    for ours in OURS:
        if ours in ms and FLOOR in ms:
            over = statistics.median(a - b for a, b in zip(ms[ours], ms[FLOOR], strict=True))
            report.bound(f"{ours}: median batch, above `{FLOOR}`", over, "<=", OVER_EMPTY_MS_MAX, " ms")


class SmallBatches:
    """Runs small batches through each sink in turn."""

    def __init__(self, spark: Spark, source: data.Source, folder: Path) -> None:
        self._spark, self._source, self._folder = spark, source, folder
        self._numbers = itertools.count()
        self._batches: dict[str, list[Mapping[str, float]]] = {}
        self._processor_ms: dict[str, list[tuple[float, float]]] = {}
        """Processor milliseconds of a batch, JVM and Python, for each run."""

    def run(self, sink: str) -> float:
        """Return the milliseconds of the median batch."""
        folder = self._folder / f"small_{next(self._numbers)}"
        before = self._spark.processor_s()
        batches = self._spark.call("small_batches", sink=sink, source=self._source.folder, folder=folder)
        jvm, python = (
            (s - s_before) * 1000 / FILES
            for s, s_before in zip(self._spark.processor_s(), before, strict=True)
        )
        self._processor_ms.setdefault(sink, []).append((jvm, python))
        assert len(batches) == FILES, f"{sink}: {len(batches)} batches instead of {FILES}"
        counted = batches[WARM_UP_FILES:]
        self._batches.setdefault(sink, []).extend(counted)
        return float(statistics.median(batch["triggerExecution"] for batch in counted))

    def steps(self, sink: str) -> list[float]:
        """Return the median milliseconds of each of STEPS."""
        return [statistics.median(batch.get(step, 0) for batch in self._batches[sink]) for step in STEPS]

    def processor_ms(self, sink: str) -> list[float]:
        """Return the median processor milliseconds of a batch: JVM, and Spark's Python processes."""
        return [statistics.median(runs) for runs in zip(*self._processor_ms[sink][WARM_UP:], strict=True)]


# After a pause --------------------------------------------------------------------------------------


def _after_a_pause(report: Report, peers: Peers, options: Options, folder: Path) -> None:
    """Each sink has a separate Spark; otherwise it would use the Python workers of another sink."""
    pause_s = QUICK_PAUSE_S if options.is_quick else PAUSE_S
    files = data.small_files(FILES, ROWS).files
    cases = [case for case in PAUSED if options.wants(case)]
    with ExitStack() as stack:
        sparks = {case: stack.enter_context(started(LOCAL, peers, QUIET)) for case in cases}
        for number, (case, spark) in enumerate(sparks.items()):
            spark.call("open", sink=case, files=files[:1], folder=folder / f"paused_{number}")
        seconds: Samples = {case: [] for case in cases}
        for number in range(1, options.repeat + 1):
            print_progress(f"  {number}/{options.repeat} a pause of {pause_s} s")
            time.sleep(pause_s)
            for case, spark in sparks.items():
                (batch,) = spark.call("feed", sink=case, files=files[number : number + 1])
                seconds[case].append(batch["triggerExecution"] / 1000)
                print_progress(f"  {number}/{options.repeat} {case}: {seconds[case][-1]:.2f} s")
        for case, spark in sparks.items():
            spark.call("close", sink=case)
    middle = medians(seconds)
    report.text(
        f"## After a pause of {pause_s} s\n\nSpark has ended the idle Python workers by then. Each sink has "
        "a separate Spark."
    )
    report.table(
        ("sink", "first batch, s", "slowest, s"),
        ((f"`{case}`", middle[case], max(seconds[case])) for case in cases),
    )
    for ours in OURS:
        if ours in seconds and "empty-python" in seconds:
            over = statistics.median(
                a - b for a, b in zip(seconds[ours], seconds["empty-python"], strict=True)
            )
            name = f"{ours}: first batch after a pause, above an empty Python sink"
            report.bound(name, over, "<=", AFTER_PAUSE_S_MAX, " s")
