"""Measures the time of `import penstock` and of the first use of its modules."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchmarks.measure import Options, interleaved, medians
from benchmarks.report import Report

STATEMENTS = (
    "import penstock",
    "import penstock.committers.contract",
    "import pyarrow",
    "import deltalake",
    "import sqlalchemy",
    "import pyiceberg.table",
    "import pyspark.sql",
    "import penstock; penstock.register",
    "import penstock; penstock.DeltaDataSource",
)


def run(options: Options) -> Report:
    report = Report(
        "import_time",
        "Importing Penstock",
        f"Each statement runs in {options.repeat} new interpreters, all in turn. Milliseconds without the "
        "interpreter's own start.",
    )
    cases = {one: partial(milliseconds, one) for one in STATEMENTS if options.wants(one)}
    samples = interleaved(cases, options.repeat)
    rows = ((f"`{one}`", median, min(samples[one])) for one, median in medians(samples).items())
    report.table(("statement", "median, ms", "best, ms"), rows)
    return report


def milliseconds(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print((time.perf_counter() - t) * 1000)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(ended.stdout)
