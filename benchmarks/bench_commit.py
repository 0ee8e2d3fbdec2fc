"""What a batch's commit costs as the table's history grows.

    python benchmarks/bench_commit.py [delta|iceberg] [--commits N] [--check]

Commits batches of 8 files into a table on the local disk, with a SQLite store beside it, and takes the median
over 15 commits after 10, 100, 1,000 and 3,000 earlier ones, both formats in turn. Every commit is timed as a
whole as the driver does it (open store and table, look, prepare, table commit, mark, maintenance) and in its
parts. The data files are never read by a commit, so none are written; their entries carry statistics of 10
columns.

With `--check` the exit code is 1 if the whole commit costs more than 4 times as much after 1,000 commits
(Delta), or 3 times as much after 3,000 (Iceberg), as after 10.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.committers.contract import Batch, Committable, DataFile, Manifest, Outcome, StreamKey
from penstock.committers.lake_manifest import build_manifest
from penstock.committers.store.sql import open_store
from penstock.committers.two_phase import TwoPhaseCommitter
from penstock.datasource.options.delta import DeltaOptions
from penstock.datasource.options.iceberg import IcebergOptions
from penstock.datasource.sinks.delta import DeltaSink
from penstock.datasource.sinks.iceberg import IcebergSink

EARLIER = (10, 100, 1000, 3000)
SAMPLES = 15
FILES, COLUMNS, ROWS = 8, 10, 100_000
RATIO_MAX = {"delta": (1000, 4.0), "iceberg": (3000, 3.0)}
SCHEMA = pa.schema([(f"c{n}", pa.int64()) for n in range(COLUMNS)])


def delta_statistics(first: int) -> str:
    columns = [f"c{n}" for n in range(COLUMNS)]
    bounds = {
        "numRecords": ROWS,
        "minValues": dict.fromkeys(columns, first),
        "maxValues": dict.fromkeys(columns, first + ROWS - 1),
        "nullCount": dict.fromkeys(columns, 0),
    }
    return json.dumps(bounds)


def iceberg_statistics(first: int) -> str:
    ids = range(1, COLUMNS + 1)
    bounds = {
        "column_sizes": dict.fromkeys(ids, 800_000),
        "value_counts": dict.fromkeys(ids, ROWS),
        "null_value_counts": dict.fromkeys(ids, 0),
        "nan_value_counts": {},
        "lower_bounds": dict.fromkeys(ids, first.to_bytes(8, "little").hex()),
        "upper_bounds": dict.fromkeys(ids, (first + ROWS - 1).to_bytes(8, "little").hex()),
        "split_offsets": [4],
    }
    return json.dumps(bounds)


def delta_sink(folder: Path) -> DeltaSink:
    return DeltaSink(DeltaOptions(path=str(folder / "table")))


def iceberg_sink(folder: Path) -> IcebergSink:
    return IcebergSink(IcebergOptions(table="bench.t", warehouse=str(folder / "warehouse")))


SINKS: dict[str, tuple[Callable[[Path], Any], Callable[[int], str]]] = {
    "delta": (delta_sink, delta_statistics),
    "iceberg": (iceberg_sink, iceberg_statistics),
}


class TimedTable:
    """A table committer that adds up the time spent in the table's own commit."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, manifest: Manifest) -> Outcome:
        started = time.perf_counter()
        try:
            outcome: Outcome = self._table.commit(manifest)
        finally:
            self.seconds += time.perf_counter() - started
        return outcome


class Run:
    """One stream, committed batch by batch."""

    def __init__(self, sink: Any, statistics_of: Callable[[int], str], folder: Path) -> None:
        self._sink = sink
        self._statistics_of = statistics_of
        self._stream = StreamKey("11111111-2222-3333-4444-555555555555", sink.table_uri)
        self._store_url = f"sqlite:///{folder / 'store.db'}"
        self._next = 0

    def commit(self) -> dict[str, float]:
        """Seconds of the next batch's planning and commit, by part."""
        batch = self._batch()
        spent: dict[str, float] = {}
        with timed(spent, "plan"), open_store(self._store_url) as store:
            table = self._sink.open_table()
            TwoPhaseCommitter(store, table).begin(batch)
            content = self._sink.plan_table(table, SCHEMA, False, batch.batch_id).content
            store.register(self._stream, self._sink.kind, table_id=content.table_id)
        files = tuple(self._file(batch.batch_id, n) for n in range(FILES))
        with timed(spent, "commit"), open_store(self._store_url) as store:
            timed_table = TimedTable(self._sink.open_table())
            manifest = build_manifest(batch, content.with_files(files))
            TwoPhaseCommitter(store, timed_table).commit(manifest, [Committable(batch, "run", 0, 0, files)])
            with timed(spent, "maintain"):
                self._sink.maintain(store, batch.batch_id)
        two_phase = spent["commit"] - spent["maintain"]
        return {**spent, "table": timed_table.seconds, "store": two_phase - timed_table.seconds}

    def _batch(self) -> Batch:
        batch_id, self._next = self._next, self._next + 1
        return Batch(self._stream, batch_id, hashlib.sha256(str(batch_id).encode()).hexdigest())

    def _file(self, batch_id: int, number: int) -> DataFile:
        first = (batch_id * FILES + number) * ROWS
        path = f"penstock-{self._stream.query_id}-run-{batch_id:08d}-{number:05d}-0-0000.zstd.parquet"
        return DataFile(path, 8_000_000, ROWS, (), self._statistics_of(first))


@contextmanager
def timed(spent: dict[str, float], part: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    spent[part] = time.perf_counter() - started


def measure(run: Run, commits: list[int]) -> dict[int, list[dict[str, float]]]:
    samples: dict[int, list[dict[str, float]]] = {earlier: [] for earlier in commits}
    for done in range(max(commits) + SAMPLES):
        spent = run.commit()
        for earlier, kept in samples.items():
            if earlier <= done < earlier + SAMPLES:
                kept.append(spent)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("formats", nargs="*", choices=[*SINKS, []], help="default: all")
    parser.add_argument("--commits", type=int, default=max(EARLIER), help="earlier commits at most")
    parser.add_argument("--check", action="store_true", help="fail if the cost grows too much")
    arguments = parser.parse_args()
    commits = [earlier for earlier in EARLIER if earlier <= arguments.commits]
    say_machine()
    too_much = []
    for name in arguments.formats or SINKS:
        medians = bench(name, commits)
        earlier, ratio_max = RATIO_MAX[name]
        if medians.get(earlier, 0) > ratio_max * medians[min(commits)]:
            too_much.append(name)
    sys.exit(1 if arguments.check and too_much else 0)


def bench(name: str, commits: list[int]) -> dict[int, float]:
    """Print the table of one format; the medians of the whole commit, in ms."""
    make_sink, statistics_of = SINKS[name]
    with tempfile.TemporaryDirectory(prefix="bench-commit-") as folder:
        started = time.perf_counter()
        samples = measure(Run(make_sink(Path(folder)), statistics_of, Path(folder)), commits)
        seconds = time.perf_counter() - started
    print(f"\n{name}")
    medians = report(samples)
    print(f"whole run {seconds:.0f} s", flush=True)
    return medians


def say_machine() -> None:
    names = ("penstock", "deltalake", "pyiceberg", "pyarrow", "sqlalchemy")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}")
    print(f"{FILES} files of {ROWS:,} rows and {COLUMNS} columns per commit; medians of {SAMPLES}, in ms")


def report(samples: dict[int, list[dict[str, float]]]) -> dict[int, float]:
    """Print the table; its last line, the medians of the whole commit in ms."""
    print(
        "after earlier commits  " + "".join(f"{earlier:>9,}" for earlier in samples) + "    ratio   slowest"
    )
    medians: dict[int, float] = {}
    for part, what in (
        ("plan", "plan, before the write"),
        ("table", "  table commit"),
        ("store", "  prepare and mark"),
        ("maintain", "  maintenance"),
        ("commit", "commit, as a whole"),
    ):
        medians = {
            earlier: statistics.median(spent[part] for spent in kept) * 1000
            for earlier, kept in samples.items()
        }
        slowest = max(spent[part] for kept in samples.values() for spent in kept) * 1000
        ratio = medians[max(medians)] / medians[min(medians)]
        print(
            f"{what:23}" + "".join(f"{ms:9.1f}" for ms in medians.values()) + f"{ratio:9.1f}{slowest:10.1f}"
        )
    return medians


if __name__ == "__main__":
    main()
