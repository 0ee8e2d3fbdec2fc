"""Measures large batches into a Postgres table: Penstock, Spark's JDBC sink, and COPY alone."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Protocol

import psutil
import psycopg
import pyarrow.parquet as pq
from benchmarks import data
from benchmarks.measure import Options, Samples, interleaved, machine, medians, print_progress, ratio
from benchmarks.report import Report, bars
from benchmarks.spark.postgres_sinks import JDBC_ROWS, SERVER_SETTING
from benchmarks.spark.process import CORES, LOCAL, Peers, Spark, started
from benchmarks.throughput import FLOOR, QUICK_ROWS, ROWS, WARM_UP, WARM_UP_ROWS, LargeBatches
from pyarrow import csv
from servers.maven import MavenUnreachableError, classpath
from servers.postgres import postgres

JDBC_DRIVER = Path(__file__).parent / "peers" / "jdbc.xml"
OURS, PREPARED, JDBC, COPY = "penstock.postgres", "penstock.postgres-prepared", "foreach-jdbc", "copy"
CASES = (FLOOR, OURS, PREPARED, JDBC, COPY)
TIMES_AS_FAST = {OURS: 1.8, PREPARED: 2.4}
CHUNK_BYTES = 1 << 20

COLUMNS = """
l_orderkey bigint, l_partkey bigint, l_suppkey bigint, l_linenumber integer, l_quantity numeric(15,2),
l_extendedprice numeric(15,2), l_discount numeric(15,2), l_tax numeric(15,2), l_returnflag text,
l_linestatus text, l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct text,
l_shipmode text, l_comment text"""
"""The columns that both sinks create."""
_TABLES = (
    "SELECT tablename FROM pg_tables WHERE schemaname = 'public' "
    "AND tablename NOT IN ('penstock_fence', 'penstock_prepared')"
)


def run(options: Options) -> Report:
    report = Report(
        "postgres_sink",
        "Throughput into a Postgres table",
        f"A stream of TPC-H's lineitem, all rows in one batch, into a table without indexes. `{OURS}` is "
        f"exactly-once, and so is `{PREPARED}`, which has `commit=prepared`. Spark's own JDBC sink in "
        f"`foreachBatch` is not; it has `batchsize={JDBC_ROWS}` and `reWriteBatchedInserts=true`. `{COPY}` "
        f"is the limit without Spark: {CORES} connections copy the same rows from CSV files into one table "
        f"with the same columns. `{FLOOR}` is a Python sink that receives the rows and does nothing. {CORES} "
        f"tasks run at a time, on {CORES} cores that they share with the server. PostgreSQL has its default "
        "settings, except for `max_prepared_transactions`, and makes a checkpoint before each run, outside "
        "of the measured time. The runs of all cases are interleaved; the figures are medians of "
        f"{options.repeat}. Processor seconds include all threads and processes.",
    )
    source = data.lineitem(options.rows or (QUICK_ROWS if options.is_quick else ROWS))
    jars, missing_reason = "", ""
    try:
        jars = classpath(JDBC_DRIVER).replace(":", ",")
    except MavenUnreachableError as error:
        missing_reason = f"Without Spark's JDBC sink: {error}."
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        postgres() as server,
        started(LOCAL, Peers(Path(sys.executable), ""), _settings(server.port, jars)) as spark,
    ):
        report.machine = machine("pyspark", "pyarrow", "psycopg")
        database, processor = Database(server.port), Processor(spark, server)
        large = LargeBatches(spark, source, Path(folder))
        csv_rows = CsvRows(source, Path(folder))
        cases: dict[str, Callable[[], float]] = {FLOOR: partial(large.run, FLOOR)}
        for case in (OURS, PREPARED, JDBC):
            cases[case] = partial(database.filled, partial(large.run, case), source.rows + WARM_UP_ROWS)
        cases[COPY] = partial(database.filled, partial(database.copy, csv_rows), source.rows)
        cases = {case: partial(processor.measured, case, run) for case, run in cases.items()}
        wanted = [case for case in CASES if options.wants(case) and (jars or case != JDBC)]
        seconds = interleaved({case: cases[case] for case in wanted}, options.repeat, warm_up=WARM_UP)
    _report_results(report, source, seconds, large, processor)
    if missing_reason:
        report.text(missing_reason)
    return report


def _settings(port: int, jars: str) -> dict[str, str]:
    settings = {SERVER_SETTING: f"127.0.0.1:{port}"}
    return {**settings, "spark.jars": jars} if jars else settings


class Database:
    """The database of all cases, with one table at a time."""

    def __init__(self, port: int) -> None:
        self._conninfo = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self._conninfo)

    def filled(self, write: Callable[[], float], rows: int) -> float:
        """Call `write`, check the number of rows in its new table, and drop the table; return its seconds."""
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
            seconds = write()
            ((table,),) = connection.execute(_TABLES).fetchall()
            counted = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert counted == (rows,), f"{counted} rows were written, not {rows:,}"
            connection.execute(f"DROP TABLE {table}")
        return seconds

    def copy(self, rows: CsvRows) -> float:
        """Copy all rows into a new table and return the seconds."""
        with self.connect() as connection:
            connection.execute(f"CREATE TABLE copied ({COLUMNS})")
        return rows.each(self._copy)

    def _copy(self, file: Path) -> None:
        statement = "COPY copied FROM STDIN (FORMAT csv)"
        with (
            self.connect() as connection,
            connection.cursor().copy(statement) as copy,
            file.open("rb") as rows,
        ):
            while chunk := rows.read(CHUNK_BYTES):
                copy.write(chunk)


class HasProcesses(Protocol):
    """A server, whose first process is the main one."""

    def processes(self) -> list[psutil.Process]: ...


class Processor:
    """Measures the processor time of each run. Other programs on the machine hardly affect it."""

    def __init__(self, spark: Spark, server: HasProcesses) -> None:
        self._spark, self._server = spark, server
        self._runs: dict[str, list[tuple[float, float, float]]] = {}

    def measured(self, case: str, run: Callable[[], float]) -> float:
        before = self._so_far()
        sample = run()
        spent = [after - start for after, start in zip(self._so_far(), before, strict=True)]
        self._runs.setdefault(case, []).append((spent[0], spent[1], spent[2]))
        return sample

    def medians(self, case: str) -> list[float]:
        """Return the median seconds of the JVM, of Spark's Python processes, and of the server."""
        return [statistics.median(runs) for runs in zip(*self._runs[case][WARM_UP:], strict=True)]

    def _so_far(self) -> tuple[float, float, float]:
        main, *others = self._server.processes()
        times = main.cpu_times()
        server = times.user + times.system + times.children_user + times.children_system
        for process in others:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                server += times.user + times.system
        return *self._spark.processor_s(), server


class CsvRows:
    """All rows in CSV files, one file per connection."""

    def __init__(self, source: data.Source, folder: Path) -> None:
        self._files = [folder / f"rows-{number}.csv" for number in range(CORES)]
        for number, file in enumerate(self._files):
            print_progress(f"Writing {file.name}")
            with file.open("wb") as output:
                for parquet in source.files[number::CORES]:
                    rows = data.as_from_spark(pq.read_table(parquet))
                    csv.write_csv(rows, output, csv.WriteOptions(include_header=False))

    def each(self, load: Callable[[Path], None]) -> float:
        """Call `load` for all files at once and return the seconds."""
        started_at = time.perf_counter()
        with ThreadPoolExecutor(len(self._files)) as pool:
            list(pool.map(load, self._files))
        return time.perf_counter() - started_at


def _report_results(
    report: Report, source: data.Source, seconds: Samples, large: LargeBatches, processor: Processor
) -> None:
    middle = medians(seconds)
    speeds = {case: source.rows / one / 1e6 for case, one in middle.items()}
    report.table(
        (
            "",
            "seconds",
            "in tasks",
            "million rows/s",
            f"relative to `{COPY}`",
            "processor s: JVM",
            "Python",
            "server",
        ),
        (
            (
                f"`{case}`",
                one,
                _task_s(large, case),
                speeds[case],
                ratio(seconds, case, COPY),
                *processor.medians(case),
            )
            for case, one in middle.items()
        ),
    )
    report.text(
        f"The tasks of `{OURS}` copy rows. The rest of its time is planning and the commit. Its "
        "`INSERT ... SELECT` runs in one process of the server. With `commit=prepared` rows are written "
        "once, into the table, and the commit writes none."
    )
    if all(case in seconds for case in (FLOOR, JDBC, COPY)):
        jdbc, floor, copy = (sum(processor.medians(case)) for case in (JDBC, FLOOR, COPY))
        report.text(
            f"`{FLOOR}` and `{COPY}` together take {(floor + copy) / jdbc:.2f} of the processor time of "
            f"`{JDBC}`. If Spark and the server share all cores, as here, a Python sink that only copies its "
            f"rows would be {jdbc / (floor + copy):.1f} times as fast. Exactly-once costs the staging tables "
            "and the transaction that moves their rows."
        )
    report.plot("Rows per second", bars(speeds, "million rows a second"))
    for case, wanted in TIMES_AS_FAST.items():
        if case in seconds and JDBC in seconds:
            report.bound(f"{case}, times as fast as {JDBC}", ratio(seconds, JDBC, case), ">=", wanted)


def _task_s(large: LargeBatches, case: str) -> float | None:
    batches = large.batches.get(case, ())[WARM_UP:]
    return statistics.median(batch["tasks"] for batch in batches) / 1000 if batches else None
