"""Reads rows of staging tables back, as the Arrow rows that the query wrote."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pyarrow as pa

from ..arrow_ipc.reader import read_schema
from .content import TableContent
from .contract import Cursor, TypeRules
from .dialect import Dialect
from .staging import StagingTable

ROWS_READ = 1000
"""Rows that are read at a time."""


def encoded_schema(rows: pa.Schema) -> str:
    """Return the columns of a query for the manifest."""
    plain = pa.schema([pa.field(field.name, field.type) for field in rows])
    return base64.b64encode(plain.serialize().to_pybytes()).decode()


def staged_schema(content: TableContent, rules: TypeRules) -> pa.Schema:
    """Return the columns of the rows. Without those of the query, from the types of the table."""
    derived = pa.schema([(name, rules.arrow_type(kind)) for name, kind in content.staged_columns])
    try:
        given = read_schema(base64.b64decode(content.schema, validate=True))
    except ValueError:
        return derived
    return given if len(given) == len(derived) else derived


def read_rows(
    cursor: Cursor,
    dialect: Dialect,
    content: TableContent,
    relation: str,
    *,
    where: str = "1 = 1",
    limit: int,
) -> pa.RecordBatch:
    """Read rows of a staging table, in the order in which they were written.

    Args:
        relation: SQL name of the staging table, or of a table with its columns
        where: condition on `n`, the relation
        limit: maximum number of rows
    """
    schema = staged_schema(content, dialect.types)
    staged = zip(content.staged_columns, schema, strict=True)
    columns = [dialect.selected(name, field.type) for (name, _), field in staged]
    statement = (
        f"SELECT {', '.join(columns)} FROM {relation} n WHERE {where} ORDER BY n.{dialect.row_ids.column}"
    )
    return dialect.arrow_rows(cursor, dialect.limited(statement, limit), schema)


def each_batch(
    cursor: Cursor, dialect: Dialect, content: TableContent, staged: StagingTable
) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a staging table, some at a time."""
    where, ids, relation = "1 = 1", dialect.row_ids, dialect.staged_sql(staged)
    while True:
        rows = read_rows(cursor, dialect, content, relation, where=where, limit=ROWS_READ)
        if not rows.num_rows:
            return
        yield rows
        each = f"SELECT {ids.selected()} FROM {relation} n WHERE {where} ORDER BY n.{ids.column}"
        ((row_id,),) = cursor.execute(dialect.limited(each, 1, rows.num_rows - 1)).fetchall()
        where = f"n.{ids.column} > {ids.literal(row_id)}"
