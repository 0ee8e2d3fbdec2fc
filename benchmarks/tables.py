"""Rows of lineitem into tables of each format, by Penstock without Spark and by the format's Python library.

One task writes all rows, and the driver commits them, in a table of its own each time. Then batches of one
row go into one table, to see whether a commit takes longer after many others.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import lance
import pyarrow as pa
import pyarrow.parquet as pq
from benchmarks import data
from benchmarks.measure import Options, interleaved, machine, medians, print_progress, ratio
from benchmarks.report import Report, bars
from deltalake import write_deltalake

from penstock.committers.store.sql import open_store
from penstock.datasource.plug_ins import BUILT_IN, load
from penstock.testing.conformance import Query
from penstock.testing.conformance.query import ids
from penstock.testing.duckdb_reader import load_extensions

if TYPE_CHECKING:
    from penstock.datasource.destinations import DestinationType
    from penstock.datasource.spark.base_source import PenstockDataSource

ROWS, QUICK_ROWS = 2_000_000, 500_000
ARROW_ROWS = 2000
"""As Spark passes them to a task."""
OF_DELTA_MIN = 0.9
COMMITS, QUICK_COMMITS = 1000, 100
WITH_HUDI_COLUMNS = "penstock.delta, with Hudi's columns"
MEASURED = 20
"""Commits at the beginning, after as many that are not counted, and at the end."""
GROWTH_MAX = 1.5

OPTIONS: dict[str, Callable[[Path], dict[str, str]]] = {
    "delta": lambda folder: {"path": str(folder / "table")},
    "iceberg": lambda folder: {"table": "db.t", "warehouse": str(folder / "warehouse")},
    "hudi": lambda folder: {"path": str(folder / "table")},
    "ducklake": lambda folder: {
        "catalog": f"sqlite:{folder}/catalog.sqlite",
        "table": "t",
        "dataPath": str(folder / "data"),
    },
    "lance": lambda folder: {"path": str(folder / "table")},
    "files": lambda folder: {"path": str(folder / "table")},
}


def run(options: Options) -> Report:
    count = options.rows or (QUICK_ROWS if options.is_quick else ROWS)
    rows = _rows(count)
    commits = options.commits or (QUICK_COMMITS if options.is_quick else COMMITS)
    report = Report(
        "tables",
        "Tables of each format",
        f"{count:,} rows of lineitem, in Arrow batches of {ARROW_ROWS:,} rows, by one task into a new table, "
        "with its commit; `library` is the Python library of the format, with its defaults, which is given "
        f"all rows at once. Medians of {options.repeat} interleaved runs. Hudi has no library that writes; "
        "its files have five string columns more, which `penstock.delta` writes too in the last row. "
        f"Then {commits:,} batches of one row into one table; a commit is the driver's part, without a task.",
    )
    report.machine = machine("deltalake", "pyiceberg", "pylance", "duckdb", "pyarrow")
    kinds = [kind for kind in OPTIONS if options.wants(kind)]
    cases: dict[str, Callable[[], float | None]] = {
        f"penstock.{kind}": partial(write, kind, rows) for kind in kinds
    }
    cases |= {f"{kind}: library": partial(LIBRARIES[kind], rows) for kind in kinds if kind in LIBRARIES}
    if "hudi" in kinds:
        cases[WITH_HUDI_COLUMNS] = partial(write, "delta", _with_hudi_columns(rows))
    seconds = interleaved(cases, options.repeat, warm_up=1)
    speeds = {case: count / one / 1e6 for case, one in medians(seconds).items()}
    for kind in kinds:
        if kind not in ("delta", "iceberg") and "delta" in kinds:
            of_delta = ratio(seconds, "penstock.delta", f"penstock.{kind}")
            report.bound(f"penstock.{kind}, times as fast as penstock.delta", of_delta, ">=", OF_DELTA_MIN)
    of_library = {kind: ratio(seconds, f"{kind}: library", f"penstock.{kind}") for kind in kinds}
    grown = {f"penstock.{kind}": commit_seconds(kind, commits) for kind in kinds}
    if "lance" in kinds:
        grown["lance: library"] = _lance_commit_seconds(commits)
    for kind in kinds:
        first, last = grown[f"penstock.{kind}"]
        what = f"penstock.{kind}: commit after {commits:,} others, relative to one after {MEASURED}"
        report.bound(what, last / first, "<=", GROWTH_MAX)
    report.table(
        ("", "million rows/s", "times as fast as the library", "first commits, ms", f"after {commits:,}, ms"),
        (
            (
                f"`{case}`",
                speeds[case],
                of_library.get(case.removeprefix("penstock.")) or "",
                *(one * 1000 for one in grown.get(case, ())),
                *([""] * (0 if case in grown else 2)),
            )
            for case in cases
        ),
    )
    report.plot("Rows per second of one task and its commit", bars(speeds, "million rows a second"))
    return report


def _rows(count: int) -> pa.Table:
    tables = (pq.read_table(file) for file in data.lineitem().files)
    table = pa.concat_tables(tables).slice(0, count)
    strings = [
        field.with_type(pa.string()) if field.type == pa.string_view() else field for field in table.schema
    ]  # as Spark passes them
    table = table.cast(pa.schema(strings)).combine_chunks()
    return pa.Table.from_batches(table.to_batches(ARROW_ROWS))


def _with_hudi_columns(rows: pa.Table) -> pa.Table:
    """The rows as they are in the files of a Hudi table."""
    with _new_folder() as folder, open_store(f"sqlite:///{folder}/store.db") as store:
        query = Query(Table("hudi", folder))
        query.run(store, query.batch(0), rows)
        table = pa.concat_tables(pq.read_table(file) for file in sorted(folder.rglob("*.parquet")))
        return pa.Table.from_batches(table.combine_chunks().to_batches(ARROW_ROWS))


@dataclass(frozen=True)
class Table:
    """See `Place`."""

    kind: str
    folder: Path

    @property
    def options(self) -> dict[str, str]:
        return OPTIONS[self.kind](self.folder)

    @property
    def destination(self) -> DestinationType:
        destination: DestinationType = load(BUILT_IN[self.kind])
        return destination

    @property
    def data_source(self) -> type[PenstockDataSource]:
        source: type[PenstockDataSource] = load(self.destination.data_source)
        return source


@contextmanager
def _new_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        yield Path(folder)


def write(kind: str, rows: pa.Table) -> float:
    """Seconds of the task and of the commit; the plan, which creates the table, is not counted."""
    with _new_folder() as folder, open_store(f"sqlite:///{folder}/store.db") as store:
        query = Query(Table(kind, folder))
        plan = query.plan(store, query.batch(0), rows.schema)
        started_at = time.perf_counter()
        query.commit(store, query.write(plan, [rows]))
        return time.perf_counter() - started_at


def commit_seconds(kind: str, commits: int) -> tuple[float, float]:
    """Medians of the first and of the last commits."""
    samples: list[float] = []
    with _new_folder() as folder, open_store(f"sqlite:///{folder}/store.db") as store:
        query = Query(Table(kind, folder))
        for batch_id in range(commits):
            batch = query.batch(batch_id)
            messages = query.write(query.plan(store, batch), [ids(batch_id)])
            started_at = time.perf_counter()
            query.commit(store, messages)
            samples.append(time.perf_counter() - started_at)
    return _first_and_last(f"penstock.{kind}", samples)


def _lance_commit_seconds(commits: int) -> tuple[float, float]:
    """As `commit_seconds`, of Lance's own library."""
    samples: list[float] = []
    with _new_folder() as folder:
        uri = str(folder / "table")
        for batch_id in range(commits):
            fragments = lance.fragment.write_fragments(ids(batch_id), uri)
            started_at = time.perf_counter()
            if batch_id == 0:
                operation = lance.LanceOperation.Overwrite(ids().schema, fragments)
                lance.LanceDataset.commit(uri, operation)
            else:
                version = lance.dataset(uri).version
                lance.LanceDataset.commit(uri, lance.LanceOperation.Append(fragments), read_version=version)
            samples.append(time.perf_counter() - started_at)
    return _first_and_last("lance: library", samples)


def _first_and_last(what: str, samples: list[float]) -> tuple[float, float]:
    first, last = statistics.median(samples[MEASURED : 2 * MEASURED]), statistics.median(samples[-MEASURED:])
    print_progress(
        f"  {what}: commits take {first * 1000:.1f} ms, after {len(samples):,} {last * 1000:.1f} ms"
    )
    return first, last


def _delta(rows: pa.Table) -> float:
    with _new_folder() as folder:
        started_at = time.perf_counter()
        write_deltalake(str(folder / "table"), rows)
        return time.perf_counter() - started_at


def _iceberg(rows: pa.Table) -> float:
    from pyiceberg.catalog.sql import SqlCatalog

    with _new_folder() as folder:
        catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", rows.schema)
        started_at = time.perf_counter()
        table.append(rows)
        seconds = time.perf_counter() - started_at
        catalog.close()
        return seconds


def _ducklake(rows: pa.Table) -> float:
    with _new_folder() as folder, duckdb.connect() as connection:
        load_extensions(connection, "sqlite-scanner", "ducklake")
        connection.execute(
            f"ATTACH 'ducklake:sqlite:{folder}/catalog.sqlite' AS l (DATA_PATH '{folder}/data')"
        )
        connection.register("rows", rows)
        connection.execute("CREATE TABLE l.t AS SELECT * FROM rows LIMIT 0")
        started_at = time.perf_counter()
        connection.execute("INSERT INTO l.t SELECT * FROM rows")
        return time.perf_counter() - started_at


def _lance(rows: pa.Table) -> float:
    with _new_folder() as folder:
        started_at = time.perf_counter()
        lance.write_dataset(rows, str(folder / "table"))
        return time.perf_counter() - started_at


def _files(rows: pa.Table) -> float:
    with _new_folder() as folder:
        started_at = time.perf_counter()
        pq.write_table(rows, folder / "rows.parquet")
        return time.perf_counter() - started_at


LIBRARIES: Mapping[str, Callable[[pa.Table], float]] = {
    "delta": _delta,
    "iceberg": _iceberg,
    "ducklake": _ducklake,
    "lance": _lance,
    "files": _files,
}
