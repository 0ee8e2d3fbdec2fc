"""Rows are split and encoded in the background: one piece at a time, and no error is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.plans import delta_plan

from penstock.writers.background import Background
from penstock.writers.parquet.data_files import DataFileWriter
from penstock.writers.parquet.file import OpenParquetFile
from penstock.writers.parquet.file_names import FileNames

GROUP_ROWS = 100
WAIT_S_MAX = 5
ROWS = pa.record_batch({"id": pa.array(range(GROUP_ROWS))})


def writer_of(path: Path, rows: pa.RecordBatch = ROWS, **settings: Any) -> DataFileWriter:
    plan = delta_plan(path, rows.schema, row_group_rows=GROUP_ROWS, **settings)
    return DataFileWriter(plan, FileNames("query", "run", 7, 3, 12))


def before_each_row_group(monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any]) -> None:
    write = OpenParquetFile.write_row_group

    def act_and_write(file: OpenParquetFile, rows: pa.Table) -> None:
        action()
        write(file, rows)

    monkeypatch.setattr(OpenParquetFile, "write_row_group", act_and_write)


def test_rows_are_accepted_while_a_row_group_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more_rows = threading.Event()
    in_time: list[bool] = []
    before_each_row_group(monkeypatch, lambda: in_time.append(more_rows.wait(WAIT_S_MAX)))
    writer = writer_of(tmp_path)
    writer.write(ROWS)
    writer.write(ROWS.slice(0, 1))
    more_rows.set()
    (file,) = writer.finish()
    assert in_time == [True, True]
    assert file.rows == GROUP_ROWS + 1


def test_rows_are_accepted_while_many_table_partitions_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that waits for each of their row groups keeps Spark's JVM waiting."""
    partitions = 50
    numbers = pa.array(range(1000))
    rows = pa.record_batch({"id": numbers, "p": pa.array([n % partitions for n in range(1000)])})
    more_rows = threading.Event()
    in_time: list[bool] = []
    before_each_row_group(monkeypatch, lambda: in_time.append(more_rows.wait(WAIT_S_MAX)))
    writer = writer_of(tmp_path, rows, partition_by=("p",), buffer_bytes_max=4 * rows.nbytes)
    writer.write(rows)
    for _ in range(9):
        writer.write(rows.slice(0, 100))
    more_rows.set()
    files = writer.finish()
    assert all(in_time)
    assert sum(file.rows for file in files) == 1000 + 9 * 100


def test_one_piece_of_work_runs_at_a_time() -> None:
    done: list[int] = []
    begun: list[list[int]] = []

    def work(number: int) -> None:
        begun.append(list(done))
        time.sleep(0.05)  # as long as work takes: nobody waits for the clock here
        done.append(number)

    background = Background("test")
    for number in range(3):
        background.start(work, number)
        assert len(done) >= number
    background.wait()
    background.stop()
    assert begun == [[], [0], [0, 1]]


@pytest.mark.parametrize("last", ["write", "close"])
def test_an_error_while_encoding_is_raised_by_the_next_call(
    last: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    before_each_row_group(monkeypatch, fail)
    writer = writer_of(tmp_path)
    writer.write(ROWS)
    writer.write(ROWS)
    with pytest.raises(OSError, match="No space left"):
        writer.write(ROWS) if last == "write" else writer.finish()
    writer.abort()
    assert not list(tmp_path.rglob("*.parquet"))


def test_an_abort_discards_the_running_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before_each_row_group(monkeypatch, lambda: time.sleep(0.2))
    writer = writer_of(tmp_path)
    writer.write(ROWS)
    writer.write(ROWS)
    writer.abort()
    assert not list(tmp_path.rglob("*.parquet"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-writer")]
