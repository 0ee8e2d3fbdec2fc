"""What `import penstock` costs, and what the first use of its parts adds.

    python benchmarks/import_time.py

Each statement runs in fresh interpreters; the median and the best of nine are printed, in milliseconds
beyond the interpreter's own start.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys

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
RUNS = 9


def milliseconds(statement: str) -> list[float]:
    code = f"import time; t = time.perf_counter(); {statement}; print((time.perf_counter() - t) * 1000)"
    return [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(RUNS)
    ]


def main() -> None:
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, {RUNS} runs")
    print(f"{'median ms':>10} {'best ms':>10}")
    for statement in STATEMENTS:
        times = milliseconds(statement)
        print(f"{statistics.median(times):>10.1f} {min(times):>10.1f}  {statement}")


if __name__ == "__main__":
    main()
