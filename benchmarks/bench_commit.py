"""What a batch's commit costs as the table's history grows.

    python benchmarks/bench_commit.py [--check]

Commits batches of 8 files into a Delta table on the local disk, with a SQLite store beside it, and takes
the median over 15 commits after 10, 100 and 1,000 earlier ones. Every commit is timed as a whole as the
driver does it (open store and table, look, prepare, table commit, mark) and in its parts. The data files
are never read by a commit, so none are written; their log entries carry statistics of 10 columns.

With `--check` the exit code is 1 if the whole commit after 1,000 costs more than 4 times that after 10.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

from penstock.committers.contract import Batch, Committable, DataFile, Manifest, Outcome, StreamKey
from penstock.committers.delta.committer import DeltaTableCommitter
from penstock.committers.delta.manifest import KIND, build_manifest
from penstock.committers.store.sql import open_store
from penstock.committers.two_phase import TwoPhaseCommitter

EARLIER = (10, 100, 1000)
SAMPLES = 15
FILES, COLUMNS, ROWS = 8, 10, 100_000
RATIO_MAX = 4.0
SCHEMA = pa.schema([(f"c{n}", pa.int64()) for n in range(COLUMNS)])


class TimedTable(DeltaTableCommitter):
    """Adds up the time spent in the table's own commit."""

    seconds = 0.0

    def commit(self, manifest: Manifest) -> Outcome:
        started = time.perf_counter()
        try:
            return super().commit(manifest)
        finally:
            self.seconds += time.perf_counter() - started


class Run:
    """One stream, committed batch by batch."""

    def __init__(self, folder: Path) -> None:
        self._stream = StreamKey("11111111-2222-3333-4444-555555555555", str(folder / "table"))
        self._store_url = f"sqlite:///{folder / 'store.db'}"
        self._next = 0

    def commit(self) -> dict[str, float]:
        """Seconds of the next batch's planning and commit, by part."""
        batch = self._batch()
        spent: dict[str, float] = {}
        with timed(spent, "plan"), open_store(self._store_url) as store:
            table = DeltaTableCommitter(self._stream.table_uri)
            TwoPhaseCommitter(store, table).begin(batch)
            target = table.plan(SCHEMA)
            store.register(self._stream, KIND, table_id=target.table_id)
        files = tuple(file_of(batch.batch_id, n) for n in range(FILES))
        with timed(spent, "commit"), open_store(self._store_url) as store:
            timed_table = TimedTable(self._stream.table_uri)
            manifest = build_manifest(batch, target.content(files, "append"))
            TwoPhaseCommitter(store, timed_table).commit(manifest, [Committable(batch, "run", 0, 0, files)])
        return {**spent, "table": timed_table.seconds, "store": spent["commit"] - timed_table.seconds}

    def _batch(self) -> Batch:
        batch_id, self._next = self._next, self._next + 1
        return Batch(self._stream, batch_id, hashlib.sha256(str(batch_id).encode()).hexdigest())


@contextmanager
def timed(spent: dict[str, float], part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    spent[part] = time.perf_counter() - started


def file_of(batch_id: int, number: int) -> DataFile:
    first = (batch_id * FILES + number) * ROWS
    columns = [f"c{n}" for n in range(COLUMNS)]
    bounds = {
        "numRecords": ROWS,
        "minValues": dict.fromkeys(columns, first),
        "maxValues": dict.fromkeys(columns, first + ROWS - 1),
        "nullCount": dict.fromkeys(columns, 0),
    }
    path = (
        f"penstock-11111111-2222-3333-4444-555555555555-run-{batch_id:08d}-{number:05d}-0-0000.zstd.parquet"
    )
    return DataFile(path, 8_000_000, ROWS, (), json.dumps(bounds))


def measure(run: Run) -> dict[int, list[dict[str, float]]]:
    samples: dict[int, list[dict[str, float]]] = {earlier: [] for earlier in EARLIER}
    for done in range(max(EARLIER) + SAMPLES):
        spent = run.commit()
        for earlier, kept in samples.items():
            if earlier <= done < earlier + SAMPLES:
                kept.append(spent)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help=f"fail above {RATIO_MAX:.0f}x")
    check = parser.parse_args().check
    say_machine()
    with tempfile.TemporaryDirectory(prefix="bench-commit-") as folder:
        started = time.perf_counter()
        samples = measure(Run(Path(folder)))
        seconds = time.perf_counter() - started
    ratio = report(samples)
    print(f"\nwhole run {seconds:.0f} s")
    sys.exit(1 if check and ratio > RATIO_MAX else 0)


def say_machine() -> None:
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("penstock", "deltalake", "pyarrow", "sqlalchemy")
    )
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}")
    print(f"{FILES} files of {ROWS:,} rows and {COLUMNS} columns per commit; medians of {SAMPLES}, in ms\n")


def report(samples: dict[int, list[dict[str, float]]]) -> float:
    """Print the table; the ratio of the whole commit."""
    print(
        "after earlier commits  " + "".join(f"{earlier:>9,}" for earlier in EARLIER) + "    ratio   slowest"
    )
    ratio = 0.0
    for part, what in (
        ("plan", "plan, before the write"),
        ("table", "  table commit"),
        ("store", "  prepare and mark"),
        ("commit", "commit, as a whole"),
    ):
        medians = [statistics.median(spent[part] for spent in samples[earlier]) * 1000 for earlier in EARLIER]
        slowest = max(spent[part] for kept in samples.values() for spent in kept) * 1000
        ratio = medians[-1] / medians[0]
        print(f"{what:23}" + "".join(f"{ms:9.1f}" for ms in medians) + f"{ratio:9.1f}{slowest:10.1f}")
    return ratio


if __name__ == "__main__":
    main()
