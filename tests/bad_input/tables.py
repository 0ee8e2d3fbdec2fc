"""A table per example, written as Spark would and read by duckdb; what is refused; the number of examples.

PENSTOCK_EXAMPLES=3000 pytest tests/bad_input tries so many examples per test, other ones each time.
"""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from pyspark.sql.types import StructType, TimestampNTZType
from tests.bad_input.kinds import walk
from tests.bad_input.rows import Rows
from tests.bad_input.values import rows_of, types_of
from tests.support.lakes import LAKES, LakeTable

from penstock.committers.errors import ConfigurationError, SchemaMismatchError, TableNotSupportedError
from penstock.committers.texts.safe_text import safe
from penstock.datasource.committing import commit_batch_write
from penstock.datasource.planning.plan import plan_batch_write
from penstock.datasource.spark.task import TaskAttempt
from penstock.testing.duckdb_reader import connect

REFUSALS = (ConfigurationError, SchemaMismatchError, TableNotSupportedError)


def examples(usually: int) -> settings:
    """Settings of a property: `usually` examples, always the same, or as many as the environment says."""
    more = os.environ.get("PENSTOCK_EXAMPLES")
    return settings(
        max_examples=int(more) if more else usually,
        derandomize=more is None,
        database=None,
        deadline=None,
        print_blob=True,
        phases=[phase for phase in Phase if phase is not Phase.explain],  # which may take minutes
        suppress_health_check=list(HealthCheck),
    )


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
    """A folder in memory if possible: thousands of tables are synchronized to disk."""
    memory = Path("/dev/shm")
    folder = tempfile.mkdtemp(prefix="penstock-bad-input-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write(table: LakeTable, schema: StructType, rows: Sequence[pa.RecordBatch], **options: str) -> None:
    """Append one batch of one task.

    Raises:
        PenstockError: it was refused.
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


def by_duckdb(table: LakeTable) -> pa.Table:
    return _connection().execute(f"FROM {table.relation(_connection())}").to_arrow_table()


def check_read(table: LakeTable, rows: Rows) -> None:
    """Check that duckdb reads the rows with their types."""
    read = by_duckdb(table)
    assert types_of(read.schema) == rows.types(table.kind)
    assert rows_of(read) == rows.as_read()


def refusal(act: Callable[[], object]) -> str | None:
    """Return the message of a refusal; None if there is none. Any other error fails the test."""
    try:
        act()
    except REFUSALS as error:
        return str(error)
    return None


def check_refused(
    table: LakeTable,
    schema: StructType,
    names: Collection[str],
    rows: Sequence[pa.RecordBatch] = (),
    **options: str,
) -> None:
    """Check for an error with all of these names, and no file. Without rows, planning raises it."""
    with pytest.raises(REFUSALS) as caught:
        write(table, schema, rows, **options)
    message = str(caught.value)
    assert all(is_in(message, name) for name in names), message
    assert table.data_files() == set()


def is_in(message: str, name: str) -> bool:
    """Return True if the message has this name, with escapes or without."""
    return any(text in message for text in (name, repr(name)[1:-1], safe(name)))


def columns_without_feature(schema: StructType) -> list[str]:
    """Return the columns with timestamp_ntz in a map, which make Delta tables unreadable.

    None if another one has the type outside of maps: the Delta library then sets the table feature.
    """
    if any(isinstance(part, TimestampNTZType) for part in walk(schema, into_maps=False)):
        return []
    return [
        field.name
        for field in schema.fields
        if any(isinstance(part, TimestampNTZType) for part in walk(field.dataType))
    ]
