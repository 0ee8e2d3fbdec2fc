"""A task whose storage fails: the error says which table it is, and what to do."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from tests.support.ducklakes import sqlite_lake
from tests.support.files import FilesHarness
from tests.support.hudi import HudiLake
from tests.support.lakes import DeltaLake, IcebergLake
from tests.support.lance_table import LanceHarness

from penstock.committers.contract import AttemptId, StreamKey
from penstock.committers.errors import AccessRefusedError, RetryableError, SchemaMismatchError
from penstock.committers.store.sql import SqlManifestStore
from penstock.testing.conformance.query import Query
from penstock.writers.partition import write_partition

BYTES_MAX = 20_000

TABLES: dict[str, Callable[[Path], Any]] = {
    "delta": lambda folder: DeltaLake(folder / "table"),
    "ducklake": sqlite_lake,
    "files": FilesHarness,
    "hudi": HudiLake,
    "iceberg": IcebergLake,
    "lance": LanceHarness,
}


@contextmanager
def small_files() -> Iterator[None]:
    """No file of this process gets larger, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES_MAX, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", TABLES)
def test_a_full_disk_is_an_error_that_names_the_table(
    tmp_path: Path, store: SqlManifestStore, kind: str
) -> None:
    query = Query(TABLES[kind](tmp_path), store=store)
    rows = pa.table({"id": [1], "text": [os.urandom(2 * BYTES_MAX).hex()]})
    plan = query.plan(store, query.batch(0), rows.schema)
    with small_files(), pytest.raises(RetryableError, match=r"(?i)batch.* 0.*written to .*File too large"):
        query.write(plan, [rows])


@pytest.mark.parametrize("step", ["open", "write", "finish"])
@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(28, "No space left on device"), RetryableError),
        (PermissionError(13, "Permission denied"), AccessRefusedError),
        (SchemaMismatchError("as it is"), SchemaMismatchError),
    ],
)
def test_each_step_of_a_task_has_errors_of_penstock(
    step: str, raised: Exception, expected: type[Exception]
) -> None:
    writer = Mock()
    writers = Mock(open=Mock(return_value=writer))
    failing = writers.open if step == "open" else getattr(writer, step)
    failing.side_effect = raised
    stream = StreamKey("q", "s3://bucket/table")
    place = (
        "as it is"
        if expected is SchemaMismatchError
        else "s3://bucket/table: .*Check that the storage has space"
    )
    with pytest.raises(expected, match=place):
        write_partition(writers, AttemptId("q", "r", 3, 1, 0), [Mock()], stream)
    assert writer.abort.called == (step != "open")


def test_an_error_of_the_rows_is_not_one_of_the_storage() -> None:
    rows = Mock(__iter__=Mock(side_effect=OSError("Spark's connection ended")))
    with pytest.raises(OSError, match="Spark's connection ended"):
        write_partition(Mock(), AttemptId("q", "r", 3, 1, 0), rows, StreamKey("q", "x"))
