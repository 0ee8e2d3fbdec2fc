"""Measures changes to the rows of a Postgres table: Penstock, and Spark's JDBC sink with MERGE."""

from __future__ import annotations

import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
from benchmarks.changed_tables import Cases, ChangedTables, description, staged_in
from benchmarks.measure import Options, machine
from benchmarks.postgres_sink import JDBC_DRIVER
from benchmarks.report import Report
from benchmarks.spark.postgres_sinks import SERVER_SETTING, merge_statement
from benchmarks.spark.process import LOCAL, Peers, Spark, started
from servers.maven import MavenUnreachableError, classpath
from servers.postgres import postgres

CASES = Cases("penstock.postgres-upserts", "foreach-jdbc-merge", "copy-merge")

TABLE = """
CREATE TABLE {name} (
    id bigint PRIMARY KEY, customer text, amount numeric(15,2), ordered_at timestamptz, note text
);
INSERT INTO {name} SELECT id, 'customer ' || id % 5000, id / 100.0, now(), md5(id::text)
FROM generate_series(1, {rows}) AS id;
"""


def run(options: Options) -> Report:
    report = Report(
        "postgres_upserts",
        "Changes to a Postgres table",
        description(
            options,
            CASES,
            "writes the batch with Spark's JDBC sink into a staging table, in `foreachBatch`, and then "
            "executes `MERGE` with the last row of each key. A MERGE fails if another session inserts one of "
            "the keys meanwhile.",
            "one session without Spark sends the batch, encoded beforehand, by COPY to an unlogged table, "
            "and executes the same MERGE. Each run has a new table; filling it, VACUUM and a checkpoint are "
            "not measured.",
        ),
    )
    try:
        jars = classpath(JDBC_DRIVER).replace(":", ",")
    except MavenUnreachableError as error:
        jars = ""
        report.text(f"Without Spark's JDBC sink: {error}.")
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        postgres() as server,
        started(LOCAL, Peers(Path(sys.executable), ""), _settings(server.port, jars)) as spark,
    ):
        report.machine = machine("pyspark", "pyarrow", "psycopg")
        PostgresTables(spark, server.port, Path(folder), options).compare(report, jars)
    return report


def _settings(port: int, jars: str) -> dict[str, str]:
    settings = {SERVER_SETTING: f"127.0.0.1:{port}"}
    return {**settings, "spark.jars": jars} if jars else settings


class PostgresTables(ChangedTables):
    def __init__(self, spark: Spark, port: int, folder: Path, options: Options) -> None:
        super().__init__(spark, folder, options, CASES)
        self._conninfo = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"

    def create(self, name: str) -> None:
        self._execute(TABLE.format(name=name, rows=self.rows))
        self._execute(f"VACUUM ANALYZE {name}")

    def settle(self) -> None:
        self._execute("CHECKPOINT")

    def change(self, name: str, rows: pa.Table) -> float:
        staged = staged_in(name)
        self._execute(f"CREATE UNLOGGED TABLE IF NOT EXISTS {staged} (LIKE {name}, lsn bigint, op text)")
        self._execute(f"TRUNCATE {staged}")
        content = io.BytesIO()
        pa_csv.write_csv(rows, content, pa_csv.WriteOptions(include_header=False))
        copy = f"COPY {staged} ({', '.join(rows.column_names)}) FROM STDIN (FORMAT csv)"
        merge = merge_statement(name, staged, rows.column_names)
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            started_at = time.perf_counter()
            with connection.transaction(), connection.cursor() as cursor:
                with cursor.copy(copy) as stream:
                    stream.write(content.getbuffer())
                cursor.execute(merge)
            return time.perf_counter() - started_at

    def fingerprint(self, name: str) -> tuple[Any, ...]:
        columns = "(id, customer, amount, note)"
        query = f"SELECT count(*), sum(hashtext({columns}::text)::bigint) FROM {name}"
        with psycopg.connect(self._conninfo) as connection:
            return tuple(connection.execute(query).fetchall()[0])

    def drop(self, name: str) -> None:
        self._execute(f"DROP TABLE {name}; DROP TABLE IF EXISTS {staged_in(name)}")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute(statement)
