"""Makes one row of several partial rows of a key: a later row completes those before it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Upserts:
    """Rows that insert or replace, and for each the columns that keep their value."""

    rows: pa.RecordBatch
    kept: Sequence[Collection[str]]

    def completing(self, number: int, earlier: Upserts) -> Upserts:
        """Return these rows, one of which completes an earlier one.

        Args:
            earlier: one row with the same columns
        """
        names = [name for name in self.kept[number] if name not in earlier.kept[0]]
        rows, kept = self.rows, list(self.kept)
        kept[number] = frozenset(self.kept[number]) & frozenset(earlier.kept[0])
        for name in names:
            column = rows.column(name)
            before = [column.slice(0, number), earlier.rows.column(name), column.slice(number + 1)]
            rows = rows.set_column(rows.schema.get_field_index(name), name, pa.concat_arrays(before))
        return Upserts(rows, kept)

    def row(self, number: int) -> Upserts:
        return Upserts(self.rows.slice(number, 1), [self.kept[number]])


def folded(earlier: Upserts, *, deleted_first: bool) -> Upserts:
    """Return rows of one key as one row.

    Args:
        earlier: in their order, at least one unless the key was deleted before them
        deleted_first: the key was deleted before them, so no column keeps a value
    """
    if not earlier.rows.num_rows:
        nothing = pa.RecordBatch.from_arrays(
            [pa.nulls(1, column.type) for column in earlier.rows.schema], schema=earlier.rows.schema
        )
        return Upserts(nothing, [frozenset()])
    whole = earlier.row(0)
    for number in range(1, earlier.rows.num_rows):
        whole = earlier.row(number).completing(0, whole)
    return Upserts(whole.rows, [frozenset()]) if deleted_first else whole
