"""Data sources that also read their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base_source import PenstockDataSource
from .catalog_tables import without_catalog_tables
from .spark_workers import loading_libraries
from .worker_errors import message_first

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


class TableDataSource(PenstockDataSource):
    """Writes tables, and reads them with `spark.read` and `spark.readStream`.

    Spark asks an instance in a process on the driver for the schema, and another instance for a reader, which
    plans the files. Executors get the reader and their part of the files. Nothing of this is loaded to write.
    """

    @message_first()
    @without_catalog_tables
    def schema(self) -> StructType:
        """Return the columns that are read, as Spark has them."""
        with loading_libraries():
            from ..reading.spark_reader import schema_to_read
        return schema_to_read(self.name(), self.options)

    @message_first()
    @without_catalog_tables
    def reader(self, schema: StructType) -> DataSourceReader:
        with loading_libraries():
            from ..reading.spark_reader import reader_of
        return reader_of(self.name(), self.options, schema)

    @message_first()
    @without_catalog_tables
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Called for each run of a query, and on the driver for each batch, to be sent to executors."""
        with loading_libraries():
            from ..reading.stream_readers import stream_reader_of
        return stream_reader_of(self.name(), self.options, schema)
