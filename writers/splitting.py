"""Rows apart by keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc


def split_by(keys: Sequence[pa.Array], rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """For each combination of keys: the index of its first row, and its rows in arrival order.

    All are slices of one gathered copy: who keeps one of them keeps all in memory. The work is one sort of
    small integers, and one gather of everything.
    """
    codes = _codes(keys)
    order = pc.sort_indices(codes)
    runs = pc.run_end_encode(codes.take(order))
    gathered = rows if len(runs.run_ends) == 1 else pc.take(rows, order, boundscheck=False)
    start = 0
    for end in runs.run_ends.to_pylist():
        yield order[start].as_py(), gathered.slice(start, end - start)
        start = end


def _codes(keys: Sequence[pa.Array]) -> pa.Array:
    """One small integer per row; equal for rows with equal keys."""
    codes = _encode(keys[0])
    for key in keys[1:]:
        more = _encode(key)
        width = pc.add(pc.max(more), 1)
        codes = _encode(pc.add(pc.multiply(codes.cast(pa.int64()), width.cast(pa.int64())), more))
    return codes


def _encode(key: pa.Array) -> pa.Array:
    return key.dictionary_encode(null_encoding="encode").indices
