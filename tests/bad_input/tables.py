"""A table per example: through options, plan, data files and commit as Spark would, then read by others."""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
from pyspark.sql.types import StructType
from tests.support.lakes import LAKES, LakeTable

from penstock.datasource.committing import commit_batch_write
from penstock.datasource.planning import plan_batch_write
from penstock.datasource.task import TaskAttempt
from penstock.testing.duckdb_reader import connect


@contextmanager
def new_table(kind: str) -> Iterator[LakeTable]:
    folder = _folder() / str(next(_numbers))
    folder.mkdir()
    try:
        yield LAKES[kind](folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_numbers = itertools.count()


@cache
def _folder() -> Path:
    """In memory where there is such a file system: thousands of tables are synchronized to disk."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="penstock-bad-input-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write(table: LakeTable, schema: StructType, rows: Sequence[pa.RecordBatch], **options: str) -> None:
    """One batch, appended by one task.

    Raises:
        PenstockError: refused; no file is left then.
    """
    sink = table.sink(**options)
    plan = plan_batch_write(sink, schema, overwrite=False)
    attempt = TaskAttempt(partition=0, attempt=0, run_id="", query_id="", batch_id=None)
    commit_batch_write(sink, [plan.write(rows, attempt)])


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    connection = connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def by_duckdb(table: LakeTable, where: str = "true") -> pa.Table:
    query = f"SELECT * FROM {table.relation(_connection())} WHERE {where}"
    return _connection().execute(query).to_arrow_table()
