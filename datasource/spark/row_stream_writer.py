"""The stream writer for Spark 4.0, which passes rows to Python streaming sinks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from ...committers.errors import SchemaMismatchError
from ..planning.batch_plan import BatchPlan
from .stream_writer import StreamWriter
from .utc import process_in_utc

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

    from ..query import Query

ROWS_PER_BATCH = 10_000
"""Spark's default for Arrow batches (spark.sql.execution.arrow.maxRecordsPerBatch)."""


class RowStreamWriter(StreamWriter, DataSourceStreamWriter):
    """See `StreamWriter`; Spark calls `write` on the executors, `commit` and `abort` on the driver."""

    def __init__(self, query: Query, plan: BatchPlan | None, schema: StructType) -> None:
        super().__init__(query, plan)
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        with process_in_utc():
            return self.write_batches(_arrow_batches(iterator, self._schema))


def _arrow_batches(rows: Iterable[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Convert rows to Arrow batches, with the Arrow types that newer Spark versions pass.

    Raises:
        SchemaMismatchError: Python cannot convert a date or a timestamp.
    """
    iterator = iter(rows)
    while table := _next_rows(iterator, schema):
        yield from table.to_batches()


def _next_rows(rows: Iterator[Row], schema: StructType) -> pa.Table | None:
    """Return the next rows; None if there are no more."""
    try:
        chunk = list(islice(rows, ROWS_PER_BATCH))
        return LocalDataToArrowConversion.convert(chunk, schema, use_large_var_types=False) if chunk else None
    except (OverflowError, ValueError) as error:
        if "out of range" not in str(error):
            raise
        raise SchemaMismatchError(
            f"Spark 4.0 cannot pass a date or a timestamp to Penstock ({error}): it is outside of the years "
            "1 to 9999 or at their ends, in UTC or in the time zone of the session. Filter these rows, set "
            "spark.sql.session.timeZone to UTC, or use Spark 4.1 or newer."
        ) from error
