"""Compares how long changes by key to a table of a database take."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks.measure import Options, interleaved, medians, print_progress, ratio
from benchmarks.report import Report, bars
from benchmarks.spark.process import CORES, Spark

ROWS, QUICK_ROWS, CHANGES = 1_000_000, 100_000, 100_000
FILES = 2
"""Of a batch, each of which is read by a task."""
TIMES_AS_FAST = 2
WARM_UP = 1


@dataclass(frozen=True)
class Cases:
    ours: str
    """Penstock."""
    jdbc: str
    """Spark's JDBC sink, and statements that change the table."""
    server: str
    """What nothing but the server costs."""

    def wanted(self, options: Options, jars: str) -> list[str]:
        cases = (self.ours, self.jdbc, self.server)
        return [case for case in cases if options.wants(case) and (jars or case != self.jdbc)]


def sizes(options: Options) -> tuple[int, int]:
    """The rows of a table, and the changes of a batch."""
    rows = options.rows or (QUICK_ROWS if options.is_quick else ROWS)
    return rows, min(CHANGES, rows)


def description(options: Options, cases: Cases, jdbc: str, server: str) -> str:
    """
    Args:
        jdbc, server: sentences that say what these cases do
    """
    rows, changes = sizes(options)
    return (
        f"A table of {rows:,} rows with a primary key gets one batch of {changes:,} changes by random keys: "
        "about 80 % updates, 10 % inserts, 10 % deletions, and about 5 % of the keys come twice. "
        f"`{cases.ours}` is exactly-once. `{cases.jdbc}` {jdbc} {CORES} tasks run at a time, on {CORES} "
        f"cores that they share with the server. `{cases.server}` is the limit: {server} All have the same "
        f"rows afterwards. The runs are interleaved; the figures are medians of {options.repeat}."
    )


class ChangedTables(ABC):
    """Changes a new table in each run."""

    def __init__(self, spark: Spark, folder: Path, options: Options, cases: Cases) -> None:
        self.rows, self._count = sizes(options)
        self._spark, self._folder, self._options, self._cases = spark, folder, options, cases
        self._numbers = itertools.count()
        self._first = _changes_files(folder / "first", self.rows, 1000, seed=0)
        self._changes = _changes_files(folder / "changes", self.rows, self._count, seed=1)
        self._found: set[tuple[Any, ...]] = set()
        self._batches: dict[str, list[dict[str, float]]] = {}

    @abstractmethod
    def create(self, name: str) -> None:
        """Create a table with `self.rows` rows and another one for staged rows, `staged_in(name)`."""

    @abstractmethod
    def settle(self) -> None:
        """Let the server finish what it does in the background."""

    @abstractmethod
    def change(self, name: str, rows: pa.Table) -> float:
        """Change a table in one session, without Spark; return the seconds."""

    @abstractmethod
    def fingerprint(self, name: str) -> tuple[Any, ...]:
        """Return numbers that are equal for equal rows."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Drop the table and that of the staged rows."""

    def compare(self, report: Report, jars: str) -> None:
        """Measure all cases, and write the results."""
        cases = self._cases.wanted(self._options, jars)
        runs = {case: partial(self._run, case) for case in cases}
        seconds = interleaved(runs, self._options.repeat, warm_up=WARM_UP)
        speeds = {case: self._count / one for case, one in medians(seconds).items()}
        report.table(
            ("", "seconds", "in tasks", "changes/s"),
            [
                (f"`{case}`", one, self._task_s(case) or "", speeds[case])
                for case, one in medians(seconds).items()
            ],
        )
        report.plot("Changes per second", bars(speeds, "changes a second"))
        ours, jdbc, server = self._cases.ours, self._cases.jdbc, self._cases.server
        if {ours, jdbc} <= set(cases):
            report.bound(f"{ours}, times as fast as {jdbc}", ratio(seconds, jdbc, ours), ">=", TIMES_AS_FAST)
        if {server, jdbc} <= set(cases):
            report.text(
                f"The server's part, `{server}`, takes {ratio(seconds, server, jdbc):.2f} of the time of "
                f"`{jdbc}`. The rest is Spark's own batch and the way of the rows out of it."
            )

    def _run(self, case: str) -> float:
        """Return the seconds of the batch."""
        name = f"table_{next(self._numbers)}"
        print_progress(f"Filling {name}")
        self.create(name)
        seconds = self._by_server(name) if case == self._cases.server else self._by_spark(case, name)
        self._found.add(self.fingerprint(name))
        assert len(self._found) == 1, f"the tables differ: {self._found}"
        self.drop(name)
        return seconds

    def _by_spark(self, sink: str, name: str) -> float:
        self._spark.call("open", sink=sink, files=self._first, folder=self._folder / name)
        self.settle()
        (batch,) = self._spark.call("feed", sink=sink, files=self._changes)
        self._spark.call("close", sink=sink)
        self._batches.setdefault(sink, []).append(batch)
        return float(batch["triggerExecution"]) / 1000

    def _by_server(self, name: str) -> float:
        self.change(name, _rows_of(self._first))
        self.settle()
        return self.change(name, _rows_of(self._changes))

    def _task_s(self, sink: str) -> float | None:
        """Return the median seconds of Spark's own step, which has the tasks and the commit."""
        if sink not in self._batches:
            return None
        return float(np.median([batch["addBatch"] for batch in self._batches[sink][WARM_UP:]])) / 1000


def staged_in(name: str) -> str:
    return f"{name}_staged"


def _rows_of(files: Sequence[Path]) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in files)


def _changes_files(folder: Path, rows: int, changes: int, seed: int) -> list[Path]:
    rng = np.random.default_rng(seed)
    folder.mkdir()
    ids = rng.integers(1, rows + rows // 9, changes)
    repeated = rng.integers(0, changes, changes // 20)
    ids[rng.integers(0, changes, changes // 20)] = ids[repeated]
    table = pa.table(
        {
            "id": ids,
            "lsn": rng.permutation(changes).astype("int64"),
            "customer": [f"customer {number}" for number in rng.integers(0, 5000, changes)],
            "amount": pa.array(rng.integers(0, 10**6, changes, "int32")).cast(pa.decimal128(15, 2)),
            "ordered_at": pa.array(rng.integers(0, 2 * 10**15, changes)).cast(pa.timestamp("us", "UTC")),
            "note": [f"changed {number:032}" for number in ids],
            "op": rng.choice(["u", "d"], changes, p=[0.9, 0.1]),
        }
    )
    size = -(-changes // FILES)
    files = []
    for number in range(FILES):
        files.append(folder / f"{folder.name}-{number}.parquet")
        pq.write_table(table.slice(number * size, size), files[-1])
    return files
