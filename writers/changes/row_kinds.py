"""What each row of a batch does: it is inserted or replaces the row of its key, or it deletes it.

Planned on the driver, pickled, and used by tasks for each Arrow batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import null_scalar, string_array
from ...committers.changes.keys import TRUE, row_numbers
from ...committers.contract import Changes
from ...committers.errors import SchemaMismatchError
from ..parquet.columns import with_offsets


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """The rows of an Arrow batch, by what they do."""

    upserts: pa.RecordBatch
    """Without the columns that the table does not get; with those of its history, as if each row was the
    current version of its key.
    """
    upsert_order: tuple[pa.Array, ...]
    """Their columns of `Changes.order_by`."""
    deletes: pa.RecordBatch
    """The columns of `Changes.identity`."""
    delete_order: tuple[pa.Array, ...]
    kept: Mapping[str, pa.Array] = field(default_factory=dict)
    """For each column that keeps its value in the table for some of the upserts: for which (boolean). It is
    NULL in these rows.
    """

    def check_whole(self) -> None:
        """For a destination that computes no rows.

        Raises:
            SchemaMismatchError: a row keeps a value.
        """
        if self.kept:
            raise SchemaMismatchError(
                f"A row does not have the values of {', '.join(sorted(self.kept))}, which its key keeps. "
                "The commit to this table does not read the rows that it replaces. Filter these rows, or let "
                "the source give whole rows, for example with REPLICA IDENTITY FULL in Postgres."
            )


KEPT = "\0kept"
"""A column that rows may have beside those of the query: the names of the columns that keep their value in
the table (`list<string>`). NULL: none.
"""


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
            SchemaMismatchError: see `check_rows`; or a version of a history does not have all values.
        """
        if self.decode is not None:
            rows = self.decode(rows)
        self.check_rows(rows)
        order = tuple([with_offsets(rows.column(name)) for name in self.changes.order_by])
        keys = rows.select(list(self.changes.keys))
        left_out = [*self.changes.drop_columns, *([KEPT] if KEPT in rows.schema.names else [])]
        table_rows = rows.drop_columns(left_out)
        if self.changes.history is not None:
            keys, table_rows = self._with_history(keys, table_rows, order[0])
        deleting = _NO_ROWS if self.deletes is None else self._deleting(rows)
        if not len(deleting):
            upserts, kept = self._keeping(rows, table_rows)
            return ChangedRows(upserts, order, keys.slice(0, 0), tuple([c.slice(0, 0) for c in order]), kept)
        staying = pc.invert(pc.is_in(row_numbers(rows.num_rows), value_set=deleting))
        upserts, kept = self._keeping(rows.filter(staying), table_rows.filter(staying))
        return ChangedRows(
            upserts,
            tuple([column.filter(staying) for column in order]),
            keys.take(deleting),
            tuple([column.take(deleting) for column in order]),
            kept,
        )

    def _deleting(self, rows: pa.RecordBatch) -> pa.Array:
        """Numbers of the rows that delete. An expression that is NULL is not true."""
        numbered = pa.table([*rows.columns, row_numbers(rows.num_rows)], [*rows.schema.names, _ROW])
        found = numbered.filter(self.deletes).column(_ROW)
        return found.combine_chunks()

    def _with_history(
        self, keys: pa.RecordBatch, rows: pa.RecordBatch, valid_from: pa.Array
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        history = self.changes.history
        assert history is not None
        keys = keys.append_column(history.valid_from, valid_from)
        rows = rows.append_column(history.valid_from, valid_from)
        rows = rows.append_column(history.valid_to, pa.nulls(rows.num_rows, valid_from.type))
        return keys, rows.append_column(history.is_current, pa.repeat(TRUE, rows.num_rows))

    def _keeping(
        self, rows: pa.RecordBatch, upserts: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, Mapping[str, pa.Array]]:
        """Find the columns that keep their value. They become NULL."""
        kept = {
            name: column.is_null()
            for name, column in zip(upserts.schema.names, upserts.columns, strict=True)
            if column.null_count and self.changes.is_partial(name)
        }
        if KEPT in rows.schema.names:
            for name, is_kept in self._named(rows.column(KEPT), upserts.schema.names).items():
                kept[name] = pc.or_(kept[name], is_kept) if name in kept else is_kept
                column = upserts.column(name)
                nulled = pc.if_else(is_kept, null_scalar(column.type), column)
                upserts = upserts.set_column(upserts.schema.names.index(name), name, nulled)
        return upserts, kept

    def _named(self, kept: pa.ListArray, names: Sequence[str]) -> Mapping[str, pa.Array]:
        """Return the rows that name a column in `KEPT` (boolean), for each column that one of them names."""
        named, rows = kept.flatten(), pc.list_parent_indices(kept)
        found = {}
        for name in set(pc.unique(named).to_pylist()).intersection(names):
            naming = rows.filter(pc.equal(named, string_array([name], named.type)[0]))
            found[name] = pc.is_in(row_numbers(len(kept)), value_set=naming.cast(pa.int64()))
        if found and self.changes.history is not None:
            raise SchemaMismatchError(
                f"A row does not have the value of {', '.join(sorted(found))}, and in a history the value of "
                "the version before is not known. Nothing of the batch was written. Let the source send "
                "whole rows, for example with REPLICA IDENTITY FULL in Postgres; or use history=false."
            )
        unkept = [name for name in found if name in (*self.changes.keys, *self.changes.order_by)]
        if unkept:
            raise SchemaMismatchError(
                f"A row does not have the value of {', '.join(unkept)}, which the option keys or orderBy "
                "names. Filter these rows in the query, or see badRows."
            )
        return found


_ROW = "\0row"
_NO_ROWS = row_numbers(0)
