"""Splits rows by keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import numeric_scalar


def split_by(keys: Sequence[pa.Array], rows: pa.Table) -> Iterator[tuple[int, pa.RecordBatch]]:
    """For each combination of keys: the index of its first row, and its rows in their order.

    All are slices of one copy: keeping one of them keeps the whole copy in memory. The work is one sort of
    small integers, and one `take` of everything.
    """
    codes = _codes(keys)
    order = pc.sort_indices(codes)
    runs = pc.run_end_encode(codes.take(order))
    gathered = in_one(rows, order if len(runs.run_ends) > 1 else None)
    start = 0
    for end in runs.run_ends.to_pylist():
        yield order[start].as_py(), gathered.slice(start, end - start)
        start = end


def in_one(rows: pa.Table, order: pa.Array | None = None) -> pa.RecordBatch:
    """All rows as one batch, in the order of these indices if there are any.

    Column by column, so that a column is still in the processor's cache when it is reordered.
    """
    columns = (column.combine_chunks() for column in rows.columns)
    if order is not None:
        columns = (pc.take(column, order, boundscheck=False) for column in columns)
    return pa.RecordBatch.from_arrays(list(columns), schema=rows.schema)


def _codes(keys: Sequence[pa.Array]) -> pa.Array:
    """One small integer per row; equal for rows with equal keys."""
    codes = _encode(keys[0])
    for key in keys[1:]:
        more = _encode(key)
        width = pc.add(pc.max(more), numeric_scalar(1))
        codes = _encode(pc.add(pc.multiply(codes.cast(pa.int64()), width.cast(pa.int64())), more))
    return codes


def _encode(key: pa.Array) -> pa.Array:
    return key.dictionary_encode(null_encoding="encode").indices
