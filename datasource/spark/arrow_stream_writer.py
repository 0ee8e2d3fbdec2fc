"""The stream writer for Spark 4.1 and newer, which passes Arrow batches to Python streaming sinks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from .coalescing import coalesced
from .stream_writer import StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowStreamWriter(StreamWriter, DataSourceStreamArrowWriter):
    """See `StreamWriter`; Spark calls `write` on the executors, `commit` and `abort` on the driver."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_batches(coalesced(iterator))
