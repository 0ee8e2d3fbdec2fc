"""The stream writer for Spark 4.0, which passes rows to Python streaming sinks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from .batch_plan import BatchPlan
from .sink import Sink
from .stream_writer import StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

ROWS_PER_BATCH = 10_000
"""Spark's default for Arrow batches (spark.sql.execution.arrow.maxRecordsPerBatch)."""


class RowStreamWriter(StreamWriter, DataSourceStreamWriter):
    """See `StreamWriter`; Spark calls `write` on the executors, `commit` and `abort` on the driver."""

    def __init__(self, sink: Sink[Any, Any], plan: BatchPlan[Any, Any] | None, schema: StructType) -> None:
        super().__init__(sink, plan)
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        return self.write_batches(_arrow_batches(iterator, self._schema))


def _arrow_batches(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Convert rows to Arrow batches, with the Arrow types that newer Spark versions pass."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, ROWS_PER_BATCH)):
        table = LocalDataToArrowConversion.convert(chunk, schema, use_large_var_types=False)
        yield from table.to_batches()
