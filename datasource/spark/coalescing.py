"""Combine the small Arrow batches that Spark passes (see `arrow_batches`) into larger ones. Executors only.

The writer's cost per batch then does not depend on Spark's batch size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pyarrow as pa

COALESCED_ROWS = 10_000
COALESCED_BYTES = 32 * 1024 * 1024


def coalesced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the same order, in batches of at least `COALESCED_ROWS` or `COALESCED_BYTES`.

    Batches with nested columns are not combined: Spark 4.0 sends empty lists without offsets, and combining
    them crashes the process.
    """
    batches = iter(batches)
    first = next(batches, None)
    if first is None:
        return
    batches = itertools.chain((first,), batches)
    if any(pa.types.is_nested(column.type) for column in first.schema):
        yield from batches
        return
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.get_total_buffer_size()  # `nbytes` takes 40 times as long
        if rows >= COALESCED_ROWS or size_bytes >= COALESCED_BYTES:
            yield from _joined(waiting)
            waiting, rows, size_bytes = [], 0, 0
    if waiting:
        yield from _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Combine batches into one, or into several if a column exceeds the range of Arrow's offsets."""
    if len(batches) == 1:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined
