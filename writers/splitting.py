"""Rows apart by keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc


def split_by(keys: Sequence[pa.Array], rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """For each combination of keys: the index of its first row, and its rows in arrival order.

    The rows have their own memory: a slice would keep all of them alive until the rarest combination is
    written. The work is one sort of small integers, and one gather for each combination.
    """
    codes = _codes(keys)
    order = pc.sort_indices(codes)
    runs = pc.run_end_encode(codes.take(order))
    start = 0
    for end in runs.run_ends.to_pylist():
        whole = end - start == rows.num_rows
        own = rows if whole else pc.take(rows, order.slice(start, end - start), boundscheck=False)
        yield order[start].as_py(), own
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
