"""Finds the rows of a delivery that count, if rows are changes by key: the last one of each key.

All rows of a batch pass here, whichever task has written them. They are read twice: first only their keys and
their order are kept, then the rows that count are sent. So memory grows with the keys of a batch.

Each key is sent once in a window of whole batches. A window begins with the first row of a batch, also if
some of its rows were sent before a crash: the last row of a key can be one of these.

Partial rows, whose columns may keep their value, complete the rows of their key before them in the batch:
these are one entry. They are never merged over batches. The progress may pass a batch whose row was left out
for a row of the next one, and that row alone does not have the values of both.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from ..arrow_values import numeric_scalar
from ..changes.key_files import Keys
from ..changes.keys import key_codes, last_rows, row_numbers
from ..changes.last_changes import ambiguous
from ..changes.same_rows import are_equal
from ..contract import LateRows
from ..row_log.log import LoggedBatch, RowLog
from .contract import ChangesRows
from .replaced_rows import WINDOW_ROWS_MAX, PlacedRows, rows_of


def changes_to_send(
    log: RowLog, batches: Sequence[LoggedBatch], start: int, requests: ChangesRows
) -> Iterator[PlacedRows]:
    """Yield the rows of a delivery from a position on, with those marked that do not count.

    Raises as `RowLog.read`.
    """
    first = 0
    for window in _windows(log, batches, requests):
        folded = sorted(window.earlier)
        for placed in rows_of(log, window.batches, max(start - first, 0)):
            number, end = placed.position, placed.position + placed.logged.rows.num_rows
            here = folded[bisect_left(folded, number) : bisect_left(folded, end)]
            earlier = {first + place: window.earlier[place] for place in here}
            sent = window.sent[number:end]
            yield replace(placed, position=first + number, kept=sent, earlier=earlier)
        first += window.rows


def check_one_row_of_each_key(log: RowLog, batch: LoggedBatch, requests: ChangesRows) -> None:
    """Check that each key of a batch has one last row. Runs on the driver, before the batch is prepared.

    Raises:
        SchemaMismatchError: two different rows of one key could be the last one.
        RetryableError: the log cannot be read now.
    """
    found = _Found.of(log, [batch], requests)
    if found is None:
        return
    keys = found.keys
    # each row that completes others counts, not only the last one
    every = (*keys.columns, *keys.order), ()
    tied = last_rows(*(every if found.has_partial else (keys.columns, keys.order)))
    if not len(tied.tied):
        return
    deleted, deleted_with = (keys.is_deleted.take(some) for some in (tied.tied, tied.tied_with))
    staying = pc.invert(deleted)
    some, others = (found.positions.take(rows.filter(staying)) for rows in (tied.tied, tied.tied_with))
    where = f"batch {batch.batch.batch_id} of {batch.batch.stream}"
    if pc.any(pc.xor(deleted, deleted_with)).as_py() or not _are_equal(log, batch, requests, some, others):
        raise ambiguous(where, has_order=bool(keys.order))


def _are_equal(
    log: RowLog, batch: LoggedBatch, requests: ChangesRows, some: pa.Array, others: pa.Array
) -> bool:
    """Return True if the rows at these positions are equal, one by one, in what the destination gets."""
    if not len(some):
        return True
    wanted = pc.unique(pa.concat_arrays([some, others]))
    positions, tables = [], []
    for placed in rows_of(log, [batch], 0):
        changed = requests.changes_of(placed.logged.rows)
        numbers = changed.numbers.slice(0, changed.upserts.num_rows)
        at = pc.add(numbers, numeric_scalar(placed.position))
        chosen = pc.is_in(at, value_set=wanted)
        positions.append(at.filter(chosen))
        tables.append(pa.Table.from_batches([changed.upserts.filter(chosen)]))
    rows, at = pa.concat_tables(tables), pa.concat_arrays(positions)
    return are_equal(rows.take(pc.index_in(some, value_set=at)), rows.take(pc.index_in(others, value_set=at)))


@dataclass(frozen=True, slots=True)
class _Window:
    """Consecutive batches, and what becomes of their rows."""

    batches: Sequence[LoggedBatch]
    sent: bytes
    """For each row 1 if it is sent, 0 if another row of its key counts."""
    earlier: Mapping[int, pa.RecordBatch] = field(default_factory=dict)
    """By the place of a row that is sent, the rows that it completes, in their order."""

    @property
    def rows(self) -> int:
        return len(self.sent)


def _windows(log: RowLog, batches: Sequence[LoggedBatch], requests: ChangesRows) -> Iterator[_Window]:
    """Yield windows of batches with the same columns."""
    waiting = list(batches)
    while waiting:
        taken = [waiting.pop(0)]
        rows = taken[0].rows
        while waiting and rows + waiting[0].rows <= WINDOW_ROWS_MAX:
            rows += waiting[0].rows
            taken.append(waiting.pop(0))
        yield from _decided(log, taken, requests)


def _decided(log: RowLog, batches: Sequence[LoggedBatch], requests: ChangesRows) -> Iterator[_Window]:
    rows = sum(batch.rows for batch in batches)
    found = _Found.of(log, batches, requests)
    if found is None:
        yield _Window(batches, b"\1" * rows)
    elif len(batches) > 1 and (found.has_partial or not found.has_one_schema):
        for batch in batches:
            yield from _decided(log, [batch], requests)
    else:
        sent, chains = found.sent(rows, requests.late_rows)
        yield _Window(batches, sent, _read(log, batches, chains) if chains else {})


def _read(
    log: RowLog, batches: Sequence[LoggedBatch], chains: Mapping[int, Sequence[int]]
) -> dict[int, pa.RecordBatch]:
    """Return the rows at these places, together for each chain."""
    wanted = {place for chain in chains.values() for place in chain}
    rows: dict[int, pa.RecordBatch] = {}
    for placed in rows_of(log, batches, 0):
        first = placed.position
        for place in wanted.intersection(range(first, first + placed.logged.rows.num_rows)):
            rows[place] = placed.logged.rows.slice(place - first, 1)
    return {last: _joined([rows[place] for place in chain]) for last, chain in chains.items()}


def _joined(rows: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    (joined,) = pa.Table.from_batches(rows).combine_chunks().to_batches()
    return joined


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows of consecutive batches that have a key."""

    keys: Keys
    positions: pa.Array
    """The place of each row (int64)."""
    batches: pa.Array
    """For each row the number of its batch (int64)."""
    is_partial: pa.Array
    has_one_schema: bool

    @classmethod
    def of(cls, log: RowLog, batches: Sequence[LoggedBatch], requests: ChangesRows) -> _Found | None:
        """Read the rows. None: no row has a key."""
        keys: list[Keys] = []
        positions: list[pa.Array] = []
        numbers: list[pa.Array] = []
        partial: list[pa.Array] = []
        schemas: list[pa.Schema] = []
        number_of = {batch.batch: number for number, batch in enumerate(batches)}
        for placed in rows_of(log, batches, 0):
            changed = requests.changes_of(placed.logged.rows)
            keys.append(changed.keys)
            positions.append(pc.add(changed.numbers, numeric_scalar(placed.position)))
            number = numeric_scalar(number_of[placed.batch.batch])
            numbers.append(pa.repeat(number, len(changed.keys)))
            partial.append(changed.is_partial)
            if placed.logged.rows.schema not in schemas[-1:]:
                schemas.append(placed.logged.rows.schema)
        if not any(map(len, keys)):
            return None
        if len(schemas) > 1 and len(batches) > 1:  # they cannot be compared
            keys, positions, numbers, partial = ([one[0]] for one in (keys, positions, numbers, partial))
        return cls(
            Keys.concat(keys),
            pa.concat_arrays(positions),
            pa.concat_arrays(numbers),
            pa.concat_arrays(partial),
            len(schemas) == 1,
        )

    @property
    def has_partial(self) -> bool:
        return bool(pc.any(self.is_partial).as_py())

    def sent(self, rows: int, late_rows: LateRows) -> tuple[bytes, dict[int, list[int]]]:
        """Return 1 for each row that is sent, and by its place the rows that it completes.

        Args:
            rows: all rows, with those without a key, which are sent: the destination refuses them
        """
        order = self._order(late_rows)
        is_sent = bytearray(b"\1" * rows)
        lost = pc.invert(
            pc.is_in(row_numbers(len(self.keys)), value_set=last_rows(self.keys.columns, order).rows)
        )
        for place in self.positions.filter(lost).to_pylist():
            is_sent[place] = 0
        return bytes(is_sent), self._chains(order) if self.has_partial else {}

    def _order(self, late_rows: LateRows) -> list[pa.Array]:
        """The columns that order the rows of a key. Equal rows have an order, too, so that one remains."""
        by_age = (
            [*self.keys.order, self.batches] if late_rows == "ignore" else [self.batches, *self.keys.order]
        )
        return [*by_age, self.positions]

    def _chains(self, order: Sequence[pa.Array]) -> dict[int, list[int]]:
        """Return, by the place of the last row of a key, the places of those before it that count.

        These begin behind the last row that replaces or deletes; that one is the first of them.
        """
        names = [f"order.{number}" for number in range(len(order))]
        codes = key_codes(self.keys.columns)
        table = pa.Table.from_arrays([codes, *order], names=["code", *names])
        in_order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])
        chains: dict[int, list[int]] = {}
        chain: list[int] = []
        before = None
        columns = (codes, self.positions, self.is_partial)
        for code, place, is_partial in zip(*(one.take(in_order).to_pylist() for one in columns), strict=True):
            if code != before or not is_partial:
                chain = []
            chain.append(place)
            before = code
            chains[code] = chain
        return {chain[-1]: chain[:-1] for chain in chains.values() if len(chain) > 1}
