"""What each row of a batch does: it is inserted or replaces the row of its key, or it deletes it.

Planned on the driver, pickled, and used by tasks for each Arrow batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.changes.keys import row_numbers
from ...committers.contract import Changes
from ...committers.errors import SchemaMismatchError
from ..parquet.columns import with_offsets


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """The rows of an Arrow batch, by what they do."""

    upserts: pa.RecordBatch
    """Without the columns that the table does not get."""
    upsert_order: tuple[pa.Array, ...]
    """Their columns of `Changes.order_by`."""
    deletes: pa.RecordBatch
    """The key columns."""
    delete_order: tuple[pa.Array, ...]
    kept: pa.Array | None = None
    """For each upsert the names of the columns that keep their value in the table (`list<string>`); None: no
    column of any row does.
    """


KEPT = "\0kept"
"""A column that rows may have beside those of the query: see `ChangedRows.kept`. NULL: none."""


@dataclass(frozen=True, slots=True)
class RowKinds:
    """Tells what rows do. Column names have the case of the rows."""

    changes: Changes
    deletes: pc.Expression | None = None
    """True for rows that delete; None: no row does."""
    decode: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    """Decodes rows that are messages, with and without `KEPT`. It can be pickled."""

    def check_rows(self, rows: pa.RecordBatch) -> None:
        """
        Raises:
            SchemaMismatchError: a key or order column has NULL.
        """
        for names, what in ((self.changes.keys, "keys"), (self.changes.order_by, "orderBy")):
            if bad := [name for name in names if rows.column(name).null_count]:
                raise SchemaMismatchError(
                    f"NULL in {', '.join(bad)}, which the option {what} names: such a row has no key or no "
                    "place in the order. Filter these rows in the query, or see badRows."
                )

    def split(self, rows: pa.RecordBatch) -> ChangedRows:
        """
        Raises:
            SchemaMismatchError: see `check_rows`.
        """
        if self.decode is not None:
            rows = _without_kept(self.decode(rows))
        self.check_rows(rows)
        order = [with_offsets(rows.column(name)) for name in self.changes.order_by]
        table_rows = rows.drop_columns(list(self.changes.drop_columns))
        keys = rows.select(list(self.changes.keys))
        if self.deletes is None:
            return ChangedRows(table_rows, tuple(order), keys.slice(0, 0), _none_of(order))
        deleting = self._deleting(rows)
        if not len(deleting):
            return ChangedRows(table_rows, tuple(order), keys.slice(0, 0), _none_of(order))
        staying = pc.invert(pc.is_in(row_numbers(rows.num_rows), value_set=deleting))
        return ChangedRows(
            table_rows.filter(staying),
            tuple([column.filter(staying) for column in order]),
            keys.take(deleting),
            tuple([column.take(deleting) for column in order]),
        )

    def _deleting(self, rows: pa.RecordBatch) -> pa.Array:
        """Numbers of the rows that delete. An expression that is NULL is not true."""
        numbered = pa.table([*rows.columns, row_numbers(rows.num_rows)], [*rows.schema.names, _ROW])
        found = numbered.filter(self.deletes).column(_ROW)
        return found.combine_chunks()


_ROW = "\0row"


def _without_kept(rows: pa.RecordBatch) -> pa.RecordBatch:
    """
    Raises:
        SchemaMismatchError: a row keeps values of the table's row.
    """
    if KEPT not in rows.schema.names:
        return rows
    raise SchemaMismatchError(
        "A message does not have the values of some columns, which must keep those of the table "
        "(__debezium_unavailable_value). This is not supported: give the table in Postgres REPLICA IDENTITY "
        "FULL."
    )


def _none_of(columns: Sequence[pa.Array]) -> tuple[pa.Array, ...]:
    return tuple([column.slice(0, 0) for column in columns])
