"""Finds the rows of a delivery that a later row of the same key replaces (log compaction of RFC 0055).

The rows are read in windows, first only the columns of the key. Of each key, the last row of the window is
kept; a row without a key (NULL in one of its columns) is always kept. Memory depends on the limits of a
window alone. A key that is in two windows is sent twice, in order.

Why no value is lost: the row that replaces another one has a higher position in the same delivery. Batches
are delivered in order, and the progress never passes a row that is not acknowledged. So whatever part of the
delivery is recorded before a crash, the later row is behind it, in a batch that is still PREPARED, and the
next delivery sends it or a later row of its key. Only an operator can change that: if the batch of the later
row is skipped or aborted after the batch of the earlier one was recorded, the destination keeps an older
value of the key. The same is true if the destination refuses the later row for good, and the query drops such
rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from ..row_log.log import LoggedBatch, LoggedRows, RowLog

WINDOW_ROWS_MAX = 500_000
WINDOW_BYTES_MAX = 64 * 1024 * 1024
"""Size of the key columns of a window, as Arrow data."""


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Some rows of a delivery."""

    batch: LoggedBatch
    logged: LoggedRows
    position: int
    """Place of the first row in the delivery."""
    kept: bytes | None = None
    """For each row 1 if it is sent, 0 if a later one replaces it. None: all are sent."""
    earlier: Mapping[int, pa.RecordBatch] = field(default_factory=dict)
    """See `ChangesRows.folding`."""

    @property
    def replaced(self) -> int:
        return 0 if self.kept is None else self.kept.count(0)


def rows_of(
    log: RowLog, batches: Sequence[LoggedBatch], start: int, columns: Sequence[str] | None = None
) -> Iterator[PlacedRows]:
    """Yield the rows of a delivery from a position on, in their order. Raises as `RowLog.read`."""
    first = 0
    for batch in batches:
        for logged in log.read(batch, max(start - first, 0), columns):
            yield PlacedRows(batch, logged, first + logged.position)
        first += batch.rows


def rows_to_send(
    log: RowLog, batches: Sequence[LoggedBatch], start: int, keys: Sequence[str]
) -> Iterator[PlacedRows]:
    """Yield the rows as `rows_of` does, with those marked that a later row of the delivery replaces.

    Args:
        keys: columns of the key; empty: nothing is replaced
    """
    if not keys:
        yield from rows_of(log, batches, start)
        return
    kept, window = b"", start
    for rows in rows_of(log, batches, start):
        if rows.position >= window + len(kept):
            window = rows.position
            kept = _kept(log, batches, window, keys)
        first = rows.position - window
        part = kept[first : first + rows.logged.rows.num_rows]
        yield PlacedRows(rows.batch, rows.logged, rows.position, part)


def _kept(log: RowLog, batches: Sequence[LoggedBatch], start: int, keys: Sequence[str]) -> bytes:
    """Return which rows of the window that begins at `start` are kept.

    A window ends where the columns change: a query that was started with other columns may not have the key.
    """
    parts: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for placed in rows_of(log, batches, start, keys):
        part = placed.logged.rows
        if parts and part.schema != parts[0].schema:
            break
        parts.append(part)
        rows += part.num_rows
        size_bytes += part.nbytes
        if rows >= WINDOW_ROWS_MAX or size_bytes >= WINDOW_BYTES_MAX:
            break
    if len(parts[0].schema.names) < len(keys):
        return b"\1" * rows
    return _last_of_each_key(pa.Table.from_batches(parts))


def _last_of_each_key(keys: pa.Table) -> bytes:
    names = [f"key{number}" for number in range(keys.num_columns)]
    table = keys.rename_columns(names).append_column("row", pa.array(range(keys.num_rows), pa.int64()))
    has_key = pc.is_valid(table["key0"])
    for name in names[1:]:
        has_key = pc.and_(has_key, pc.is_valid(table[name]))
    last = table.filter(has_key).group_by(names, use_threads=False).aggregate([("row", "max")])["row_max"]
    kept = bytearray(keys.num_rows)
    for row in (*last.to_pylist(), *table["row"].filter(pc.invert(has_key)).to_pylist()):
        kept[row] = 1
    return bytes(kept)
