"""Reads rows of staging tables back, as the Arrow rows that the query wrote."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ..database.content import TableContent
from ..database.contract import Cursor
from ..database.staged_rows import staged_schema
from ..database.staging import StagingTable
from . import types as rules
from .address import qualified, quoted
from .table import PART


def each_insert(cursor: Cursor, content: TableContent, staged: StagingTable) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each INSERT of a task, which are at most `bufferSize`."""
    schema = staged_schema(content, rules)
    columns = ", ".join(quoted(name) for name, _ in content.staged_columns)
    source, part = qualified(staged.schema, staged.name), quoted(PART)
    for (number,) in cursor.execute(f"SELECT DISTINCT {part} FROM {source}").fetchall():
        query = f"SELECT {columns} FROM {source} WHERE {part} = {number} ORDER BY _part, _part_offset"
        yield from arrow_rows(cursor.connection, query, schema)


def arrow_rows(connection: Any, query: str, schema: pa.Schema) -> list[pa.RecordBatch]:
    found = pa.ipc.open_stream(connection.send(query, output="ArrowStream")).read_all()
    columns = [column.cast(field.type) for column, field in zip(found.columns, schema, strict=True)]
    batches: list[pa.RecordBatch] = pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches()
    return batches
