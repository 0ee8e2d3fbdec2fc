"""Base of the data sources. Imports as little as possible: Spark loads this module for every batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import MutableMapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyspark.sql.datasource
from pyspark.sql.datasource import DataSource

from ...committers.errors import ConfigurationError
from .calling_batch import CallingBatch, calling_batch
from .catalog_tables import without_catalog_tables
from .pickling import PlansUntilPickled
from .spark_workers import loading_libraries, release_caches
from .worker_errors import message_first

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from ..query import Query
    from ..sink import Sink


class QueryDataSource(PlansUntilPickled, DataSource):
    """Writes streams into all targets of a query, exactly once per (query, batch).

    For every micro-batch Spark creates an instance in a planner process on the driver and asks it for a
    writer, and creates another instance to commit. See `pickling`.
    """

    format: ClassVar[str]
    """What `writeStream.format(...)` takes, such as `penstock.delta`."""
    readers = "a reader of the format, such as DuckDB, Polars, pyiceberg or deltalake"
    """What reads the tables, for the error message."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        return cls.format

    @abstractmethod
    def query(self) -> Query:
        """Return the query for the options: its targets. Loads the table libraries.

        Raises:
            ConfigurationError: lists everything that is wrong with the options.
        """

    @message_first()
    @without_catalog_tables
    def schema(self) -> StructType:
        """Called by Spark only to read, which is not supported."""
        raise ConfigurationError(
            f"{self.name()} writes tables but does not read them. Read them with {self.readers}."
        )

    @message_first()
    @without_catalog_tables
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with loading_libraries():
            query = self.query()
            from ..planning.plan import plan_stream_batch
        plan = None
        if self._plans:
            plan = plan_stream_batch(query, schema, overwrite)
            release_caches()
        if hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"):
            from .arrow_stream_writer import ArrowStreamWriter

            return ArrowStreamWriter(query, plan)
        from .row_stream_writer import RowStreamWriter

        return RowStreamWriter(query, plan, schema)

    @message_first()
    @without_catalog_tables
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Called by Spark for `df.write`, on its own or in a function of `foreachBatch`."""
        called_in, options = calling_batch(self.options)
        if called_in is None:
            return self.batch_writer(schema, overwrite)
        return type(self)(options)._foreach_writer(called_in, schema, overwrite)

    def _foreach_writer(
        self, called_in: CallingBatch, schema: StructType, overwrite: bool
    ) -> DataSourceWriter:
        with loading_libraries():
            query = replace(self.query(), called_in=called_in)
            from ..planning.plan import plan_stream_batch
            from .foreach_writer import ForeachWriter
        plan = plan_stream_batch(query, schema, overwrite)
        release_caches()
        return ForeachWriter(type(self), self.options, query, plan)

    @abstractmethod
    def batch_writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch write, or refuse it."""


class PenstockDataSource(QueryDataSource):
    """Writes streams and batches into one destination."""

    @abstractmethod
    def sink(self) -> Sink[Any, Any]:
        """Return the sink for the options. Loads the table library.

        Raises:
            ConfigurationError: lists everything that is wrong with the options.
        """

    def query(self) -> Query:
        from ..query import Query

        if any(name.lower() == "routeby" for name in self.options):
            from ..routing.query import routed_query

            return routed_query(self.format, type(self), self.options)
        return Query.of(self.sink())

    def batch_writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .batch_writer import BatchWriter

        with loading_libraries():
            sink = self.sink()
        return BatchWriter(sink, schema, overwrite)
