"""The data source `penstock.fanout`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...committers.errors import ConfigurationError
from ..spark.base_source import QueryDataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceWriter
    from pyspark.sql.types import StructType

    from ..query import Query


class FanoutDataSource(QueryDataSource):
    """Several destinations at once. See `QueryDataSource`."""

    format = "penstock.fanout"
    readers = "the readers of its targets"

    def query(self) -> Query:
        from .query import fanout_query

        return fanout_query(self.options)

    def batch_writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise ConfigurationError(
            "penstock.fanout is only for streams: its targets are delivered after the batch. Write each "
            "target with a write of its own."
        )
