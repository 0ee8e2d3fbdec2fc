"""Reads rows of staging tables back, as the Arrow rows that the query wrote."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..arrow_ipc.reader import read_schema
from .address import quoted
from .content import PostgresContent
from .staging import StagingTable
from .types import arrow_type

if TYPE_CHECKING:
    from .connection import Cursor

ROWS_READ = 1000
"""Rows that are read at a time."""

_TID = re.compile(r"\((\d+),(\d+)\)")


def encoded_schema(rows: pa.Schema) -> str:
    """Return the columns of a query for the manifest."""
    plain = pa.schema([pa.field(field.name, field.type) for field in rows])
    return base64.b64encode(plain.serialize().to_pybytes()).decode()


def staged_schema(content: PostgresContent) -> pa.Schema:
    """Return the columns of the rows. Without those of the query, from the types of the table."""
    derived = pa.schema([(name, arrow_type(kind)) for name, kind in content.staged_columns])
    try:
        given = read_schema(base64.b64decode(content.schema, validate=True))
    except ValueError:
        return derived
    return given if len(given) == len(derived) else derived


def read_rows(
    cursor: Cursor, content: PostgresContent, relation: str, *, where: str = "true", limit: int
) -> pa.RecordBatch:
    """Read rows of a staging table, in the order in which they were written.

    Args:
        relation: SQL name of the staging table, or of a table with its columns
        where: condition on `ctid`
        limit: maximum number of rows
    """
    schema = staged_schema(content)
    staged = zip(content.staged_columns, schema, strict=True)
    columns = [_selected(name, field.type) for (name, _), field in staged]
    statement = f"SELECT {', '.join(columns)} FROM {relation} WHERE {where} ORDER BY ctid LIMIT {limit:d}"
    rows = cursor.execute(statement).fetchall()
    return _to_arrow(rows, schema)


def each_batch(cursor: Cursor, content: PostgresContent, staged: StagingTable) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a staging table, some at a time."""
    where = "true"
    while True:
        rows = read_rows(cursor, content, staged.sql, where=where, limit=ROWS_READ)
        if not rows.num_rows:
            return
        yield rows
        last = f"SELECT ctid FROM {staged.sql} WHERE {where} ORDER BY ctid OFFSET {rows.num_rows - 1} LIMIT 1"
        ((tid,),) = cursor.execute(last).fetchall()
        where = f"ctid > {tid_literal(tid)}"


def tid_literal(tid: str) -> str:
    """Return the address of a row, as the server has given it, for a statement."""
    match = _TID.fullmatch(tid)
    assert match is not None, tid
    return f"'({match[1]},{match[2]})'::tid"


def _selected(name: str, data_type: pa.DataType) -> str:
    """The column in a form that psycopg returns without loss."""
    column = quoted(name)
    if pa.types.is_timestamp(data_type) and data_type.tz:
        return f"{column} AT TIME ZONE 'UTC'"
    if pa.types.is_list(data_type) and pa.types.is_string(data_type.value_type):
        return f"{column}::text[]"
    return f"{column}::text" if pa.types.is_string(data_type) else column


def _to_arrow(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ([] for _ in schema)
    arrays = [pa.array(list(values), field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
