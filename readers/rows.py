"""The rows that a scan returns, from batches that have the columns of the table."""

from __future__ import annotations

import pyarrow as pa

from .predicates import Predicate
from .shapes import conform


def types_of(columns: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Return the columns that are read, with the types of the returned rows where they are among them.

    Args:
        columns: those that are read
        schema: of the returned rows
    """
    own = {field.name: field for field in schema}
    return pa.schema([own.get(field.name, field).remove_metadata() for field in columns])


def matching(rows: pa.RecordBatch, where: Predicate | None, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows that match a condition, with the columns of `schema`."""
    found = rows if where is None else rows.filter(where.mask(rows))
    own = [found.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(own, schema=schema) if own else found.select([])


def converted(rows: pa.RecordBatch, types: pa.Schema) -> pa.RecordBatch:
    """Return columns of a batch with other types of the same structure.

    Raises:
        pa.ArrowException: the values do not fit.
    """
    columns = [conform(rows.column(field.name), field.type) for field in types]
    return pa.RecordBatch.from_arrays(columns, schema=types) if columns else rows.select([])
