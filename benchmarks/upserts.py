"""Measures changes by key: batches, their commits, what they write, and reading afterwards.

Batches come from Spark. The commits alone, without Spark, are other batches into the same tables: from the
first step after the tasks to the mark in the store. A MERGE alone is Spark's `addBatch`, the call of the
function in `foreachBatch`.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from benchmarks.data import rows_with
from benchmarks.maintenance import compactable
from benchmarks.measure import Options, Samples, interleaved, medians, print_progress, ratio
from benchmarks.report import Report
from benchmarks.spark.process import LOCAL, Peers, Spark, find_peers, started
from benchmarks.spark.upsert_sinks import BASE_SETTING, CHANGES, table_in
from deltalake import DeltaTable, write_deltalake

from penstock import testing
from penstock.committers.file_tables.compaction import Compaction, CompactionPolicy
from penstock.committers.store.sql import SqlManifestStore, open_store_in_memory
from penstock.datasource.delta.sink import DESTINATION as DELTA
from penstock.datasource.iceberg.sink import DESTINATION as ICEBERG
from penstock.delivery.compaction import TableFileRewriter
from penstock.delivery.rewriting import GroupRewriter, InlineExecutor
from penstock.testing.conformance.query import Query, task
from penstock.testing.duckdb_reader import connect

SIZES, QUICK_SIZES = (1_000_000, 10_000_000), (1_000_000,)
CHANGED = (10_000, 100_000)
KEYS = ("random", "recent")
UPDATES = 0.9
BASE_FILES = 10
OURS = {"upsert.delta": "penstock.delta", "upsert.iceberg": "penstock.iceberg"}
MERGES = {"delta-merge": "delta-spark", "iceberg-merge": "iceberg-spark"}
LIBRARY = "deltalake"
NAMES = {**OURS, **MERGES}
PEER_OF = dict(zip(OURS, MERGES, strict=True))
COMMIT_TIMES, BATCH_TIMES, READ_MAX = 10, 5, 1.3
TABLE = "bench.rows"
QUIET = {"spark.sql.streaming.pollingDelay": "200ms"}
"""Reduces the load of queries that wait for files."""

os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")  # or polars warns that it has no other


def run(options: Options) -> Report:
    peers = find_peers()
    sizes = (options.rows,) if options.rows else QUICK_SIZES if options.is_quick else SIZES
    report = Report(
        "upserts",
        "Changes by key",
        f"Tables of {' and '.join(f'{size:,}' for size in sizes)} rows, which ids order, on a local disk. A "
        "batch replaces rows by `id` (90 %), and inserts others. The ids are random, or those of the newest "
        "rows. `penstock.delta` and `penstock.iceberg` have `writeMode=upsert`; `delta-spark` and "
        "`iceberg-spark` run MERGE in `foreachBatch`, which is not exactly-once. All mask rows in files "
        "(deletion vectors, position deletes). `deltalake` is the MERGE of the Delta library, without Spark, "
        "which writes files again. Commits alone are without Spark: from the messages of the tasks to the "
        "mark in the store. Of MERGE, it is the statement: Spark's `addBatch`. Bytes are those of all new "
        "files of the table, relative to the changes as a Parquet file. All cases are interleaved, and "
        f"figures are medians of {options.repeat} batches.",
    )
    with tempfile.TemporaryDirectory(prefix="bench-upserts-") as name:
        for size in sizes:
            is_largest = size == max(sizes)
            _of_size(report, peers, options, Path(name, str(size)), size, is_largest=is_largest)
    if peers.missing_reason:
        report.text(peers.missing_reason)
    return report


def _of_size(
    report: Report, peers: Peers, options: Options, folder: Path, size: int, *, is_largest: bool
) -> None:
    source = Changes(folder / "changes", size)
    base = write_base(folder / "base", size)
    with open_store_in_memory() as store:
        tables = {case: OwnTable(case, folder / case, store) for case in OURS if options.wants(case)}
        for table in tables.values():
            table.create(base)
        library = LibraryTable(folder / LIBRARY, base)
        report.text(f"## {size:,} rows")
        with started(LOCAL, peers, {**QUIET, BASE_SETTING: str(base)}) as spark:
            report.machine = spark.machine
            cases = [case for case in NAMES if options.wants(case) and peers.has(case)]
            streams = {case: Stream(case, spark, folder / case) for case in cases}
            first = source.take(min(CHANGED), "random", "first")
            for case, stream in streams.items():
                stream.open(first.path)
                print_progress(f"  {case}: opened")
            rows = []
            for changed, keys in itertools.product(CHANGED, KEYS):
                print_progress(f" {size:,} rows, {changed:,} {keys} changes:")
                measured = Measured(source, changed, keys, streams, tables, library)
                measured.run(options.repeat)
                rows += measured.rows()
                if keys == "random" and is_largest:
                    measured.add_bounds(report, size)
            for stream in streams.values():
                stream.close()
        header = ("changes", "keys", "", "batch, s", "commit or MERGE, s", "bytes, of the changes")
        report.table(header, rows)
        print_progress(" reading:")
        report.table(
            ("", "", "files", *(f"{name}, s" for name in READERS)),
            [row for table in tables.values() for row in _reading(report, table, size, options.repeat)],
        )
    shutil.rmtree(folder)


# Changes ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    rows: pa.Table
    path: Path

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size


@dataclass
class Changes:
    """Batches of changes. Those with the same arguments are the same."""

    folder: Path
    size: int
    """Rows of the table in the beginning."""
    _made: dict[tuple[int, str, object], Batch] = field(default_factory=dict)

    def take(self, changed: int, keys: str, number: object) -> Batch:
        wanted = changed, keys, number
        if wanted not in self._made:
            self._made[wanted] = self._make(changed, keys, len(self._made) + 1)
        return self._made[wanted]

    def _make(self, changed: int, keys: str, number: int) -> Batch:
        rng = np.random.default_rng(number)
        updates = int(changed * UPDATES)
        lowest = max(self.size - 5 * changed, 0) if keys == "recent" else 0
        old = rng.choice(np.arange(lowest, self.size), updates, replace=False)
        new = self.size + number * max(CHANGED) + np.arange(changed - updates)
        rows = rows_of(rng.permutation(np.concatenate([old, new])), number)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{number:05}.parquet"
        pq.write_table(rows, path, compression="zstd")
        return Batch(rows, path)


def rows_of(ids: Any, n: int) -> pa.Table:
    """Return rows with these ids. `n` orders the rows of an id."""
    rows = rows_with(pa.array(ids, pa.int64()))
    return rows.append_column("n", pa.array(np.full(len(ids), n), pa.int64()))


def write_base(folder: Path, size: int) -> Path:
    folder.mkdir(parents=True)
    ends = np.linspace(0, size, BASE_FILES + 1, dtype=np.int64)
    for number, (begin, end) in enumerate(itertools.pairwise(ends)):
        rows = rows_of(np.arange(begin, end), 0)
        pq.write_table(rows, folder / f"{number:05}.parquet", compression="zstd")
    return folder


# Tables -----------------------------------------------------------------------------------------------


@dataclass
class OwnTable:
    """A table of Penstock, and batches into it without Spark."""

    case: str
    stream_folder: Path
    store: SqlManifestStore

    @property
    def kind(self) -> str:
        return "delta" if self.case == "upsert.delta" else "iceberg"

    @cached_property
    def destination(self) -> Any:
        """See `penstock.testing.conformance.query.Place`."""
        return DELTA if self.kind == "delta" else ICEBERG

    @property
    def folder(self) -> Path:
        return table_in(self.stream_folder)

    @property
    def options(self) -> dict[str, str]:
        if self.kind == "delta":
            return {"path": str(self.folder)}
        return {"warehouse": str(self.folder), "table": TABLE}

    def create(self, base: Path) -> None:
        """Append each file of the rows as one file."""
        properties = {"delta.enableDeletionVectors": "true"} if self.kind == "delta" else {}
        query = Query(self, f"base-{self.kind}", {"tableProperties": json.dumps(properties)})
        for number, file in enumerate(sorted(base.iterdir())):
            query.run(self.store, query.batch(number), pq.read_table(file))
        self._query, self._batches = Query(self, f"changes-{self.kind}", CHANGES), itertools.count()

    def commit_s(self, changes: Batch) -> float:
        """Write a batch by two tasks; return the seconds of its commit."""
        rows = changes.rows
        batch, half = self._query.batch(next(self._batches)), len(rows) // 2
        plan = self._query.plan(self.store, batch, rows.schema)
        messages = self._query.write(plan, [rows.slice(0, half), rows.slice(half)])
        begin = time.perf_counter()
        self._query.commit(self.store, messages)
        return time.perf_counter() - begin

    def compact(self) -> None:
        """Do what the delivery process does, until nothing is left to do."""
        sink, query_id = self._query.sink(), self._query.query_id
        rewriter = TableFileRewriter(
            query_id,
            lambda content: sink.open_table().rewrite_config(content),  # type: ignore[attr-defined]
            GroupRewriter(InlineExecutor()),
        )
        policy = CompactionPolicy(128 * 1024**2, 96 * 1024**2)
        table = compactable(self.kind, sink, query_id)
        while Compaction(table, rewriter, policy).run().sources:
            pass

    def compacted_copy(self) -> OwnTable:
        """Another table with the same rows, written by one task."""
        copy = OwnTable(self.case, self.stream_folder.with_name(f"{self.case}_compacted"), self.store)
        query = Query(copy, f"compacted-{self.kind}")
        with connect() as connection:
            reader = connection.execute(f"FROM {self.tested.relation(connection)}").fetch_record_batch(
                100_000
            )
            batch = query.batch(0)
            plan = query.plan(self.store, batch, reader.schema)
            query.commit(self.store, [plan.write(iter(reader), task(batch))])
        return copy

    @property
    def tested(self) -> testing.DeltaTable | testing.IcebergTable:
        if self.kind == "delta":
            return testing.DeltaTable(self.folder)
        return testing.IcebergTable(TABLE, self.folder)

    def scan(self) -> pl.LazyFrame:
        if self.kind == "delta":
            return pl.scan_delta(str(self.folder))
        location = self.tested.metadata_location  # type: ignore[union-attr]
        return pl.scan_iceberg(location, reader_override="native")

    def files(self) -> int:
        with connect() as connection:
            return len(self.tested.read(connection).live)


class LibraryTable:
    """A table that the Delta library merges into."""

    def __init__(self, folder: Path, base: Path) -> None:
        self._folder = folder
        write_deltalake(str(folder), ds.dataset(base).to_table(), target_file_size=64 * 1024**2)

    def merge_s(self, changes: Batch) -> float:
        begin = time.perf_counter()
        table = DeltaTable(str(self._folder))
        merge = table.merge(changes.rows, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        return time.perf_counter() - begin


@dataclass
class Stream:
    """A stream of Spark into a table."""

    case: str
    spark: Spark
    folder: Path
    batches: list[Mapping[str, float]] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    """Bytes of each batch."""

    def open(self, file: Path) -> None:
        self.spark.call("open", sink=self.case, files=[file], folder=self.folder)

    def feed_s(self, batch: Batch) -> float:
        before = set(self._files())
        (progress,) = self.spark.call("feed", sink=self.case, files=[batch.path])
        self.batches.append(progress)
        self.written.append(sum(path.stat().st_size for path in set(self._files()) - before))
        return float(progress["triggerExecution"]) / 1000

    def close(self) -> None:
        self.spark.call("close", sink=self.case)

    def _files(self) -> Iterator[Path]:
        for folder in (self.folder, table_in(self.folder)):
            for path in folder.rglob("*"):
                if path.is_file() and "checkpoint" not in path.parts and path.name[0] != ".":
                    yield path


# Batches ----------------------------------------------------------------------------------------------


@dataclass
class Measured:
    """Batches of one size and kind, into all tables."""

    source: Changes
    changed: int
    keys: str
    streams: Mapping[str, Stream]
    tables: Mapping[str, OwnTable]
    library: LibraryTable

    def run(self, repeat: int) -> None:
        for stream in self.streams.values():
            stream.batches.clear()
            stream.written.clear()
        runs: dict[str, Callable[[Batch], float]] = {case: one.feed_s for case, one in self.streams.items()}
        runs |= {f"{case}, commit": table.commit_s for case, table in self.tables.items()}
        runs[LIBRARY] = self.library.merge_s
        cases = {case: partial(self._next, case, run) for case, run in runs.items()}
        self._numbers = {case: itertools.count() for case in cases}
        self._samples = interleaved(cases, repeat, warm_up=1)

    def _next(self, case: str, run: Callable[[Batch], float]) -> float:
        """Run with the next batch, which is that of all cases, but commits alone have their own."""
        number = next(self._numbers[case])
        kind = "commit" if case.endswith("commit") else "batch"
        return run(self.source.take(self.changed, self.keys, (kind, number)))

    @cached_property
    def samples(self) -> Samples:
        """Seconds of batches, and of commits and MERGE alone."""
        merges = {
            f"{case}, commit": [batch["addBatch"] / 1000 for batch in self.streams[case].batches[1:]]
            for case in MERGES
            if case in self.streams
        }
        return {**self._samples, **merges}

    def rows(self) -> list[tuple[object, ...]]:
        middle = medians(self.samples)
        about = f"{self.changed:,}", self.keys
        changes = self.source.take(self.changed, self.keys, ("batch", 0)).size_bytes
        rows: list[tuple[object, ...]] = [
            (
                *about,
                f"`{NAMES[case]}`",
                middle[case],
                middle.get(f"{case}, commit"),
                statistics.median(stream.written[1:]) / changes,
            )
            for case, stream in self.streams.items()
        ]
        return [*rows, (*about, f"`{LIBRARY}`", None, middle[LIBRARY], None)]

    def add_bounds(self, report: Report, size: int) -> None:
        for ours, peer in PEER_OF.items():
            of = f"{NAMES[ours]}, {size / 1e6:g}M rows, {self.changed:,} changes"
            for what, ending, wanted in (("commit", ", commit", COMMIT_TIMES), ("batch", "", BATCH_TIMES)):
                times = ratio(self.samples, f"{peer}{ending}", f"{ours}{ending}")
                report.bound(f"{of}: {what}, times as fast as MERGE", times, ">=", wanted)


# Reading ----------------------------------------------------------------------------------------------


def _in_duckdb(table: OwnTable) -> object:
    with connect() as connection:
        return connection.execute(
            f"SELECT max(COLUMNS(*)) FROM {table.tested.relation(connection)}"
        ).fetchall()


def _in_polars(table: OwnTable) -> object:
    return table.scan().select(pl.all().max()).collect()


READERS: Mapping[str, Callable[[OwnTable], object]] = {"DuckDB": _in_duckdb, "Polars": _in_polars}


def _reading(report: Report, table: OwnTable, size: int, repeat: int) -> Iterator[Sequence[object]]:
    copy = table.compacted_copy()
    changed, _ = _read(table, copy, repeat)
    files = table.files()
    table.compact()
    maintained, compacted = _read(table, copy, repeat)
    name = f"`{OURS[table.case]}`"
    yield name, "after the changes", files, *medians(changed).values()
    yield name, "after maintenance", table.files(), *medians(maintained).values()
    yield name, "compacted", copy.files(), *medians(compacted).values()
    for reader in READERS:
        times = statistics.median(maintained[reader]) / statistics.median(compacted[reader])
        what = f"{OURS[table.case]}, {size / 1e6:g}M rows: read by {reader} after maintenance"
        report.bound(f"{what}, times as long as a compacted table", times, "<=", READ_MAX)


def _read(table: OwnTable, copy: OwnTable, repeat: int) -> tuple[Samples, Samples]:
    """Return the seconds of each reader, of both tables."""
    cases: dict[str, Callable[[], float]] = {}
    for name, read in READERS.items():
        cases[name] = partial(_read_s, read, table)
        cases[f"{name}, compacted"] = partial(_read_s, read, copy)
    samples = interleaved(cases, max(repeat, 5), warm_up=1)
    return {name: samples[name] for name in READERS}, {n: samples[f"{n}, compacted"] for n in READERS}


def _read_s(read: Callable[[OwnTable], object], table: OwnTable) -> float:
    begin = time.perf_counter()
    read(table)
    return time.perf_counter() - begin
