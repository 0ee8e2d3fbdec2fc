"""Rows that change a table by key, in the columns of a staging table. Executors only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from ...committers.arrow_values import string_array
from ...committers.file_tables.evolution import Narrowing
from ..changes.row_kinds import ChangedRows, RowKinds
from ..parquet.schema_projection import SchemaProjector


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """How rows that change a table are staged. Planned on the driver."""

    kinds: RowKinds
    keys: tuple[str, ...]
    """The column of the staging tables for each of `Changes.identity`."""
    order: pa.Schema
    """The column for each of `Changes.order_by`."""
    deletes: str
    """The column that tells whether the row deletes its key."""
    kept: str = ""
    """The column that tells which columns the row keeps; empty if none does."""

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """
        Args:
            columns: those that the table gets
        """
        extra = [field for field in self.order if field.name not in columns.names]
        own = [pa.field(self.deletes, pa.bool_())]
        own += [pa.field(self.kept, pa.string())] if self.kept else []
        return pa.schema([*columns, *extra, *own])


class ChangeProjector:
    """Projects rows to the columns of a staging table. A row that deletes has its key and its place in the
    order; its other columns are NULL.

    Args:
        columns: those that the table gets
        where, narrows: see `SchemaProjector`
    """

    def __init__(self, staged: StagedChanges, columns: pa.Schema, where: str, *, narrows: Narrowing) -> None:
        self._staged = staged
        self._schema = staged.schema(columns)
        self._names = columns.names
        keys = pa.schema([columns.field(name) for name in staged.keys])
        self._columns, self._keys, self._order = (
            SchemaProjector(schema, where, narrows=narrows) for schema in (columns, keys, staged.order)
        )

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """
        Raises:
            SchemaMismatchError: a value does not fit, a key or order column has NULL, or a row keeps values
                and the database computes no rows.
        """
        changed = self._staged.kinds.split(batch)
        if not self._staged.kept:
            changed.check_whole()
        rows = self._columns(changed.upserts)
        upserts = self._staged_rows(
            rows, self._order_of(changed.upsert_order), is_deleted=False, kept=self._kept_of(changed)
        )
        if not changed.deletes.num_rows:
            return upserts
        keys = self._keys(_named(changed.deletes.columns, self._staged.keys))
        deletes = self._staged_rows(keys, self._order_of(changed.delete_order), is_deleted=True)
        both = zip(upserts.columns, deletes.columns, strict=True)
        return pa.RecordBatch.from_arrays([pa.concat_arrays(pair) for pair in both], schema=self._schema)

    def _kept_of(self, changed: ChangedRows) -> pa.Array:
        """Return for each row the numbers of the columns that it keeps, between commas; empty: none."""
        count = changed.upserts.num_rows
        names = [name.lower() for name in self._names]
        joined = pa.repeat(_COMMA, count)
        for name, is_kept in changed.kept.items():
            (number,) = string_array([f"{names.index(name.lower())},"])
            joined = pc.binary_join_element_wise(joined, pc.if_else(is_kept, number, _EMPTY), _EMPTY)
        return pc.if_else(pc.equal(joined, _COMMA), _EMPTY, joined)

    def _order_of(self, columns: Sequence[pa.Array]) -> dict[str, pa.Array]:
        names = self._staged.order.names
        if not names:
            return {}
        return dict(zip(names, self._order(_named(columns, names)).columns, strict=True))

    def _staged_rows(
        self,
        rows: pa.RecordBatch,
        order: dict[str, pa.Array],
        *,
        is_deleted: bool,
        kept: pa.Array | None = None,
    ) -> pa.RecordBatch:
        given = {**order, **dict(zip(rows.schema.names, rows.columns, strict=True))}
        if self._staged.kept:
            given[self._staged.kept] = pa.repeat(_EMPTY, rows.num_rows) if kept is None else kept
        given[self._staged.deletes] = pa.repeat(pa.scalar(is_deleted), rows.num_rows)
        columns = [
            given[field.name] if field.name in given else pa.nulls(rows.num_rows, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, names=self._schema.names)


def _named(columns: Sequence[pa.Array], names: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), names=list(names))


_COMMA, _EMPTY = string_array([",", ""])
