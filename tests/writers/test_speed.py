"""A guard against slow writing: ratios to plain pyarrow in the same process, never seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.support.plans import delta_plan
from tests.writers.task import write_as_task

BATCH_ROWS = 1000
ROUNDS = 7


def different_values(rows: int) -> pa.Table:
    """Columns in which nothing repeats: a sequence, times, numbers without order, texts."""
    ids = pa.array(range(rows), pa.int64())
    mixed = pc.bit_wise_and(pc.multiply(ids, 2654435761), 0xFFFFFFFF)
    return pa.table(
        {
            "id": ids,
            "at": pc.add(pc.multiply(ids, 1_000_003), 1_700_000_000_000_000).cast(pa.timestamp("us", "UTC")),
            "number": pc.divide(mixed.cast(pa.float64()), 1e6),
            "key": mixed,
            "text": mixed.cast(pa.string()),
        }
    )


def a_row_group_per_batch(rows: pa.Table, path: Path) -> None:
    with pq.ParquetWriter(path / "plain.parquet", rows.schema) as writer:
        for batch in rows.to_batches(BATCH_ROWS):
            writer.write_batch(batch)


def a_dictionary_per_column(rows: pa.Table, path: Path) -> None:
    pq.write_table(pa.Table.from_batches(rows.to_batches(BATCH_ROWS)), path / "gathered.parquet")


def ours(rows: pa.Table, path: Path) -> None:
    write_as_task(delta_plan(path, rows.schema), rows, batch_rows=BATCH_ROWS)


def processor_seconds(write: Callable[[pa.Table, Path], None], rows: pa.Table, path: Path) -> float:
    for file in path.glob("*"):
        file.unlink()
    start = time.process_time()
    write(rows, path)
    return time.process_time() - start


@pytest.mark.parametrize(("pyarrow", "times"), [(a_row_group_per_batch, 1.5), (a_dictionary_per_column, 1.1)])
def test_writing_is_faster_than_pyarrow_with_its_defaults(
    pyarrow: Callable[[pa.Table, Path], None], times: float, tmp_path: Path
) -> None:
    """The median of interleaved runs. Written in the other's way, ours would be no faster than it."""
    rows = different_values(300_000)
    ratios = [
        processor_seconds(pyarrow, rows, tmp_path) / processor_seconds(ours, rows, tmp_path)
        for _ in range(ROUNDS)
    ]
    assert statistics.median(ratios) > times, [f"{ratio:.2f}" for ratio in ratios]
