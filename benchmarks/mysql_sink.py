"""Measures large batches into a MariaDB table: Penstock, and Spark's JDBC sink."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import data
from benchmarks.measure import Options, interleaved, machine, medians, ratio
from benchmarks.postgres_sink import CsvRows, Processor
from benchmarks.report import Report, bars
from benchmarks.spark.mysql_sinks import JDBC_ROWS, SERVER_SETTING
from benchmarks.spark.process import CORES, LOCAL, Peers, started
from benchmarks.throughput import FLOOR, QUICK_ROWS, ROWS, WARM_UP, WARM_UP_ROWS, LargeBatches
from servers.maven import MavenUnreachableError, classpath
from servers.mysql import MariaDB, MySqlProcess, running

JDBC_DRIVER = Path(__file__).parent / "peers" / "mariadb.xml"
OURS, PREPARED, JDBC = "penstock.mysql", "penstock.mysql-prepared", "foreach-mysql-jdbc"
LOAD, LOAD_AND_MOVE = "load-data", "load-data-and-insert-select"
CASES = (FLOOR, OURS, PREPARED, JDBC, LOAD, LOAD_AND_MOVE)
TIMES_AS_FAST = {OURS: 1.0, PREPARED: 1.3}

COLUMNS = """
l_orderkey bigint, l_partkey bigint, l_suppkey bigint, l_linenumber int, l_quantity decimal(15,2),
l_extendedprice decimal(15,2), l_discount decimal(15,2), l_tax decimal(15,2), l_returnflag longtext,
l_linestatus longtext, l_shipdate date, l_commitdate date, l_receiptdate date, l_shipinstruct longtext,
l_shipmode longtext, l_comment longtext"""
"""Those that the sinks create."""


def run(options: Options) -> Report:
    report = Report(
        "mysql_sink",
        "Throughput into a MySQL table",
        "A stream of TPC-H's lineitem, all rows in one batch, into a table without indexes in MariaDB. "
        f"`{OURS}` is exactly-once, and so is `{PREPARED}`, which has `commit=prepared`. Spark's own JDBC "
        "sink in `foreachBatch` is not; it has MariaDB's driver, "
        f"`batchsize={JDBC_ROWS}` and `useBulkStmtsForInserts=true`. `{FLOOR}` is a Python sink that "
        f"receives the rows and does nothing. `{LOAD}` and `{LOAD_AND_MOVE}` are the limits without Spark: "
        f"{CORES} connections load the same rows from CSV files into one table with the same columns; then "
        f"`INSERT ... SELECT` copies them into another one. {CORES} tasks run at a time, on {CORES} cores "
        "that they share with the server. MariaDB has its default settings, except for a buffer pool of 1 "
        f"GB. The runs of all cases are interleaved; the figures are medians of {options.repeat}. Processor "
        "seconds include all threads and processes.",
    )
    source = data.lineitem(options.rows or (QUICK_ROWS if options.is_quick else ROWS))
    jars, missing_reason = "", ""
    try:
        jars = classpath(JDBC_DRIVER).replace(":", ",")
    except MavenUnreachableError as error:
        missing_reason = f"Without Spark's JDBC sink: {error}."
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        running(MariaDB, "--innodb-buffer-pool-size=1G") as server,
        started(LOCAL, Peers(Path(sys.executable), ""), _settings(server, jars)) as spark,
    ):
        report.machine = machine("pyspark", "pyarrow", "pymysql")
        processor, large = Processor(spark, server), LargeBatches(spark, source, Path(folder))
        cases: dict[str, Callable[[], float]] = {FLOOR: partial(large.run, FLOOR)}
        for case in (OURS, PREPARED, JDBC):
            cases[case] = partial(filled, server, partial(large.run, case), source.rows + WARM_UP_ROWS)
        csv_rows = CsvRows(source, Path(folder))
        for case, is_moved in ((LOAD, False), (LOAD_AND_MOVE, True)):
            loading = partial(loaded, server, csv_rows, is_moved=is_moved)
            cases[case] = partial(filled, server, loading, source.rows)
        cases = {case: partial(processor.measured, case, run) for case, run in cases.items()}
        wanted = [case for case in CASES if options.wants(case) and (jars or case != JDBC)]
        seconds = interleaved({case: cases[case] for case in wanted}, options.repeat, warm_up=WARM_UP)
    middle = medians(seconds)
    speeds = {case: source.rows / one / 1e6 for case, one in middle.items()}
    report.table(
        ("", "seconds", "million rows/s", "processor s: JVM", "Python", "server"),
        ((f"`{case}`", one, speeds[case], *processor.medians(case)) for case, one in middle.items()),
    )
    report.text(
        "The tasks load rows into staging tables, and one transaction moves them, so each row is written "
        "twice. `INSERT ... SELECT` runs in one thread of the server. With `commit=prepared` tasks "
        "write rows once, and only `XA COMMIT` runs after them."
    )
    if all(case in seconds for case in (FLOOR, JDBC, LOAD, LOAD_AND_MOVE)):
        jdbc, floor, load, both = (
            sum(processor.medians(case)) for case in (JDBC, FLOOR, LOAD, LOAD_AND_MOVE)
        )
        report.text(
            f"If all cores were busy all the time, a Python sink that only loads its rows (`{FLOOR}` and "
            f"`{LOAD}`) would be {jdbc / (floor + load):.2f} times as fast as `{JDBC}`, and "
            f"one that also copies them from staging tables {jdbc / (floor + both):.2f} times. MariaDB reads "
            "the text of LOAD DATA more slowly than the binary rows of its JDBC driver."
        )
    if missing_reason:
        report.text(missing_reason)
    report.plot("Rows per second", bars(speeds, "million rows a second"))
    for case, times in TIMES_AS_FAST.items():
        if case in seconds and JDBC in seconds:
            measured = ratio(seconds, JDBC, case)
            report.bound(f"{case}, times as fast as {JDBC}", measured, ">=", times)
    return report


def _settings(server: MySqlProcess, jars: str) -> dict[str, str]:
    settings = {SERVER_SETTING: server.new_url().removeprefix("mysql://")}
    return {**settings, "spark.jars": jars} if jars else settings


def loaded(server: MySqlProcess, rows: CsvRows, *, is_moved: bool) -> float:
    """Load all rows into a new table and return the seconds.

    Args:
        is_moved: copy them into another table, and drop the first one
    """
    url = server.new_url()
    schema = url.rpartition("/")[2]
    first, last = (f"{schema}.{name}" for name in ("staged" if is_moved else "loaded", "loaded"))
    for table in {first, last}:
        _run(server, f"CREATE TABLE {table} ({COLUMNS}) DEFAULT CHARACTER SET utf8mb4")

    def load(file: Path) -> None:
        _run(
            server,
            f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE {first} CHARACTER SET utf8mb4 "
            "FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"'",
        )

    seconds = rows.each(load)
    if is_moved:
        started_at = time.perf_counter()
        _run(server, f"INSERT INTO {last} SELECT * FROM {first}")
        seconds += time.perf_counter() - started_at
        _run(server, f"DROP TABLE {first}")
    return seconds


def _run(server: MySqlProcess, statement: str) -> None:
    with server.connect(local_infile=True) as connection, connection.cursor() as cursor:
        cursor.execute(statement)


def filled(server: MySqlProcess, write: Callable[[], float], rows: int) -> float:
    """Call `write`, check the number of rows in its new table, and drop the table; return its seconds."""
    seconds = write()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_schema, table_name FROM information_schema.tables "
            "WHERE table_schema LIKE 't%' AND table_name NOT LIKE 'penstock%'"
        )
        ((schema, table),) = cursor.fetchall()
        cursor.execute(f"SELECT count(*) FROM {schema}.`{table}`")
        ((counted,),) = cursor.fetchall()
        assert counted == rows, f"{counted:,} rows were written, not {rows:,}"
        cursor.execute(f"DROP TABLE {schema}.`{table}`")
    return seconds
