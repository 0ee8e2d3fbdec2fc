"""Measures changes to the rows of a MariaDB table: Penstock, and Spark's JDBC sink with statements."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
from benchmarks.changed_tables import Cases, ChangedTables, description, staged_in
from benchmarks.measure import Options, machine
from benchmarks.mysql_sink import JDBC_DRIVER
from benchmarks.report import Report
from benchmarks.spark.mysql_sinks import JDBC_ROWS, SERVER_SETTING, change_statements, connect
from benchmarks.spark.process import LOCAL, Peers, Spark, started
from servers.maven import MavenUnreachableError, classpath
from servers.mysql import MariaDB, running

CASES = Cases("penstock.mysql-upserts", "foreach-mysql-jdbc-changes", "load-data-changes")

_COLUMNS = "customer longtext, amount decimal(15,2), ordered_at datetime(6), note longtext"


def run(options: Options) -> Report:
    report = Report(
        "mysql_upserts",
        "Changes to a MySQL table",
        description(
            options,
            CASES,
            "writes the batch with Spark's JDBC sink into a staging table, in `foreachBatch`, with "
            f"MariaDB's driver, `batchsize={JDBC_ROWS}` and `useBulkStmtsForInserts=true`. Then it executes "
            "`DELETE` and `INSERT ... ON DUPLICATE KEY UPDATE` with the last row of each key.",
            "one session without Spark loads the batch, encoded beforehand, into a staging table, and "
            "executes the same statements. The server is MariaDB with its default settings, except for a "
            "buffer pool of 1 GB. Each run has a new table; filling it is not measured.",
        ),
    )
    try:
        jars = classpath(JDBC_DRIVER).replace(":", ",")
    except MavenUnreachableError as error:
        jars = ""
        report.text(f"Without Spark's JDBC sink: {error}.")
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        running(MariaDB, "--innodb-buffer-pool-size=1G") as server,
    ):
        place = server.new_url().removeprefix("mysql://")
        settings = {SERVER_SETTING: place, **({"spark.jars": jars} if jars else {})}
        with started(LOCAL, Peers(Path(sys.executable), ""), settings) as spark:
            report.machine = machine("pyspark", "pyarrow", "pymysql")
            MySqlTables(spark, place, Path(folder), options).compare(report, jars)
    return report


class MySqlTables(ChangedTables):
    def __init__(self, spark: Spark, place: str, folder: Path, options: Options) -> None:
        super().__init__(spark, folder, options, CASES)
        self._place, self._file = place, folder / "rows.csv"

    def create(self, name: str) -> None:
        self._execute(
            f"CREATE TABLE {name} (id bigint PRIMARY KEY, {_COLUMNS}) DEFAULT CHARACTER SET utf8mb4",
            f"INSERT INTO {name} SELECT seq, concat('customer ', seq % 5000), seq / 100, now(6), md5(seq) "
            f"FROM seq_1_to_{self.rows}",
            f"ANALYZE TABLE {name}",
        )

    def settle(self) -> None:
        """The server writes pages on its own."""

    def change(self, name: str, rows: pa.Table) -> float:
        staged = staged_in(name)
        self._execute(
            f"CREATE TABLE IF NOT EXISTS {staged} (id bigint, {_COLUMNS}, lsn bigint, op longtext) "
            "DEFAULT CHARACTER SET utf8mb4",
            f"TRUNCATE {staged}",
        )
        at = rows.column_names.index("ordered_at")
        as_utc = rows.set_column(at, "ordered_at", rows["ordered_at"].cast(pa.timestamp("us")))
        pa_csv.write_csv(as_utc, self._file, pa_csv.WriteOptions(include_header=False))
        load = (
            f"LOAD DATA LOCAL INFILE '{self._file}' INTO TABLE {staged} CHARACTER SET utf8mb4 "
            f"FIELDS TERMINATED BY ',' OPTIONALLY ENCLOSED BY '\"' ({', '.join(rows.column_names)})"
        )
        started_at = time.perf_counter()
        self._execute(load, *change_statements(name, staged, rows.column_names))
        return time.perf_counter() - started_at

    def fingerprint(self, name: str) -> tuple[Any, ...]:
        query = f"SELECT count(*), sum(crc32(concat_ws('|', id, customer, amount, note))) FROM {name}"
        with connect(self._place) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return tuple(cursor.fetchall()[0])

    def drop(self, name: str) -> None:
        self._execute(f"DROP TABLE IF EXISTS {name}, {staged_in(name)}")

    def _execute(self, *statements: str) -> None:
        with connect(self._place) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()
