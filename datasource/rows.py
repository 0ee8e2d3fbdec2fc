"""Rows to Arrow, for Spark 4.0, whose Python streaming sinks get rows. Executors only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql.conversion import LocalDataToArrowConversion

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

ROWS_PER_BATCH = 10_000
"""As many as Spark puts into an Arrow batch by default (spark.sql.execution.arrow.maxRecordsPerBatch)."""


def arrow_batches(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows as Arrow batches, with the same Arrow types that newer Spark versions hand over."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, ROWS_PER_BATCH)):
        table = LocalDataToArrowConversion.convert(chunk, schema, use_large_var_types=False)
        yield from table.to_batches()
