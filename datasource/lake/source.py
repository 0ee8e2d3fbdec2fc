"""The data source `penstock.lake`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...committers.errors import ConfigurationError
from ..spark.base_source import QueryDataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceWriter
    from pyspark.sql.types import StructType

    from ..query import Query


class LakeDataSource(QueryDataSource):
    """A Delta table and an Iceberg table with the same data files. See `QueryDataSource`."""

    format = "penstock.lake"

    def query(self) -> Query:
        from .query import lake_query

        return lake_query(self.options)

    def batch_writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise ConfigurationError(
            "penstock.lake is only for streams: its tables are delivered after the batch. Write a batch as a "
            "stream with trigger(availableNow=True)."
        )
