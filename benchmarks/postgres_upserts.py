"""Measures changes to the rows of a Postgres table: Penstock, and Spark's JDBC sink with MERGE."""

from __future__ import annotations

import io
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from benchmarks.measure import Options, interleaved, machine, medians, print_progress, ratio
from benchmarks.postgres_sink import JDBC_DRIVER
from benchmarks.report import Report, bars
from benchmarks.spark.postgres_sinks import SERVER_SETTING, merge_statement
from benchmarks.spark.process import CORES, LOCAL, Peers, Spark, started
from servers.maven import MavenUnreachableError, classpath
from servers.postgres import postgres

OURS, JDBC = "penstock.postgres-upserts", "foreach-jdbc-merge"
SERVER = "copy-merge"
"""What nothing but the server costs: it is given the bytes of a COPY that was encoded before."""
ROWS, QUICK_ROWS, CHANGES = 1_000_000, 100_000, 100_000
FILES = 2
"""Of a batch, each of which is read by a task."""
TIMES_AS_FAST = 2
WARM_UP = 1

TABLE = """
CREATE TABLE {name} (
    id bigint PRIMARY KEY, customer text, amount numeric(15,2), ordered_at timestamptz, note text
);
INSERT INTO {name} SELECT id, 'customer ' || id % 5000, id / 100.0, now(), md5(id::text)
FROM generate_series(1, {rows}) AS id;
"""


def run(options: Options) -> Report:
    rows = options.rows or (QUICK_ROWS if options.is_quick else ROWS)
    changes = min(CHANGES, rows)
    report = Report(
        "postgres_upserts",
        "Changes to a Postgres table",
        f"A table of {rows:,} rows with a primary key gets one batch of {changes:,} changes by random keys: "
        "about 80 % updates, 10 % inserts, 10 % deletions, and about 5 % of the keys come twice. "
        f"`{OURS}` is exactly-once. `{JDBC}` writes the batch with Spark's JDBC sink into a staging table, "
        "in `foreachBatch`, and then executes `MERGE` with the last row of each key. A MERGE fails if "
        f"another session inserts one of the keys meanwhile. {CORES} tasks run at a time, on {CORES} "
        f"cores that they share with the server. `{SERVER}` is the limit: one session without Spark sends "
        "the batch, encoded beforehand, by COPY to an unlogged table, and executes the same MERGE. Each run "
        "has a new table; filling it, VACUUM and a checkpoint are not measured. All have the same rows "
        f"afterwards. The runs are interleaved; the figures are medians of {options.repeat}.",
    )
    try:
        jars = classpath(JDBC_DRIVER).replace(":", ",")
    except MavenUnreachableError as error:
        jars = ""
        report.text(f"Without Spark's JDBC sink: {error}.")
    cases = [case for case in (OURS, JDBC, SERVER) if options.wants(case) and (jars or case != JDBC)]
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder,
        postgres() as server,
        started(LOCAL, Peers(Path(sys.executable), ""), _settings(server.port, jars)) as spark,
    ):
        report.machine = machine("pyspark", "pyarrow", "psycopg")
        changed = ChangedTables(spark, server.port, Path(folder), rows, changes)
        runs = {case: partial(changed.run, case) for case in cases}
        seconds = interleaved(runs, options.repeat, warm_up=WARM_UP)
    middle = medians(seconds)
    report.table(
        ("", "seconds", "in tasks", "changes/s"),
        [(f"`{case}`", one, changed.task_s(case) or "", changes / one) for case, one in middle.items()],
    )
    report.plot(
        "Changes per second", bars({case: changes / one for case, one in middle.items()}, "changes a second")
    )
    if {OURS, JDBC} <= set(cases):
        report.bound(f"{OURS}, times as fast as {JDBC}", ratio(seconds, JDBC, OURS), ">=", TIMES_AS_FAST)
    if {SERVER, JDBC} <= set(cases):
        report.text(
            f"The server's part, `{SERVER}`, takes {ratio(seconds, SERVER, JDBC):.2f} of the time of "
            f"`{JDBC}`. The rest is Spark's own batch and the way of the rows out of it."
        )
    return report


def _settings(port: int, jars: str) -> dict[str, str]:
    settings = {SERVER_SETTING: f"127.0.0.1:{port}"}
    return {**settings, "spark.jars": jars} if jars else settings


class ChangedTables:
    """Changes a new table in each run."""

    def __init__(self, spark: Spark, port: int, folder: Path, rows: int, changes: int) -> None:
        self._spark, self._folder, self._rows = spark, folder, rows
        self._conninfo = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        self._numbers = itertools.count()
        self._first = changes_files(folder / "first", rows, 1000, seed=0)
        self._changes = changes_files(folder / "changes", rows, changes, seed=1)
        self._found: set[tuple[Any, ...]] = set()
        self._batches: dict[str, list[dict[str, float]]] = {}

    def run(self, sink: str) -> float:
        """Return the seconds of the batch."""
        name = f"table_{next(self._numbers)}"
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            print_progress(f"Filling {name}")
            connection.execute(TABLE.format(name=name, rows=self._rows))
            connection.execute(f"VACUUM ANALYZE {name}")
            run = self._by_server if sink == SERVER else partial(self._by_spark, sink)
            seconds = run(connection, name)
            self._check(connection, name)
            connection.execute(f"DROP TABLE {name}; DROP TABLE IF EXISTS {name}_staged")
        return seconds

    def _by_spark(self, sink: str, connection: psycopg.Connection, name: str) -> float:
        self._spark.call("open", sink=sink, files=self._first, folder=self._folder / name)
        connection.execute("CHECKPOINT")
        (batch,) = self._spark.call("feed", sink=sink, files=self._changes)
        self._spark.call("close", sink=sink)
        self._batches.setdefault(sink, []).append(batch)
        return float(batch["triggerExecution"]) / 1000

    def _by_server(self, connection: psycopg.Connection, name: str) -> float:
        staged = f"{name}_staged"
        connection.execute(f"CREATE UNLOGGED TABLE {staged} (LIKE {name}, lsn bigint, op text)")
        _change(connection, name, staged, self._first)
        connection.execute(f"TRUNCATE {staged}; CHECKPOINT")
        return _change(connection, name, staged, self._changes)

    def task_s(self, sink: str) -> float | None:
        """Return the median seconds of Spark's own step, which has the tasks and the commit."""
        if sink not in self._batches:
            return None
        return float(np.median([batch["addBatch"] for batch in self._batches[sink][WARM_UP:]])) / 1000

    def _check(self, connection: psycopg.Connection, name: str) -> None:
        columns = "(id, customer, amount, note)"
        query = f"SELECT count(*), sum(hashtext({columns}::text)::bigint) FROM {name}"
        self._found.add(tuple(connection.execute(query).fetchall()[0]))
        assert len(self._found) == 1, f"the tables differ: {self._found}"


def _change(connection: psycopg.Connection, name: str, staged: str, files: Sequence[Path]) -> float:
    """Return the seconds of COPY and MERGE."""
    changes = pa.concat_tables(pq.read_table(file) for file in files)
    content = io.BytesIO()
    pa_csv.write_csv(changes, content, pa_csv.WriteOptions(include_header=False))
    copy = f"COPY {staged} ({', '.join(changes.column_names)}) FROM STDIN (FORMAT csv)"
    merge = merge_statement(name, staged, changes.column_names)
    started_at = time.perf_counter()
    with connection.transaction(), connection.cursor() as cursor:
        with cursor.copy(copy) as stream:
            stream.write(content.getbuffer())
        cursor.execute(merge)
    return time.perf_counter() - started_at


def changes_files(folder: Path, rows: int, changes: int, seed: int) -> list[Path]:
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
