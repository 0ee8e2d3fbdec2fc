"""Buffered rows are bounded, and keep no other memory."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
from tests.support.plans import delta_plan

from penstock.writers.parquet.buffers import RowBuffers

BYTES_MAX = 256 * 1024
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("p", pa.int32())])


def test_buffered_rows_keep_no_other_rows_in_memory(tmp_path: Path) -> None:
    """Few rows of rare table partitions and many of a common one, with texts of all lengths."""
    rng = random.Random(7)
    buffers = RowBuffers(
        delta_plan(tmp_path, SCHEMA, partition_by=("p",), buffer_bytes_max=BYTES_MAX), "here"
    )
    written = 0
    for start in range(0, 200_000, 2500):
        ids = range(start, start + 2500)
        texts = ["x" * rng.choice((0, 3, 100)) for _ in ids]
        partitions = [rng.randrange(1, 20) if rng.random() < 0.02 else 0 for _ in ids]
        batch = pa.record_batch(
            [pa.array(ids), pa.array(texts), pa.array(partitions, pa.int32())], schema=SCHEMA
        )
        written += sum(group.rows.num_rows for group in buffers.add([batch]))
        waiting = buffers.some_rows(1_000_000)
        assert sum(batch.get_total_buffer_size() for batch in waiting) < BYTES_MAX
    written += sum(buffers.take(values).rows.num_rows for values in buffers.waiting())
    assert written == 200_000
