"""What the data sources have in common. Kept tiny: Spark loads it again and again."""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyspark.sql.datasource
from pyspark.sql.datasource import DataSource

from ..committers.errors import PenstockError
from .pickling import PlansUntilPickled
from .spark_workers import release_caches

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from .sink import Sink


@contextmanager
def gc_paused() -> Iterator[None]:
    """Load libraries without Python's search for garbage, of which there is none: it takes a sixth of the
    time, in a new process for the first batch and for each one after a pause.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class PenstockDataSource(PlansUntilPickled, DataSource):
    """Writes streams and batches, exactly once per (query, batch).

    Spark makes one for every micro-batch in a planner process on the driver and asks it for a writer, and
    another one to commit: see `pickling`.
    """

    readers = "the format's own reader, such as DuckDB, Polars, pyiceberg or deltalake; README.md shows how"
    """What to read the tables with, for the message."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @abstractmethod
    def sink(self) -> Sink[Any, Any]:
        """The way into the table that the options name; loads the table library.

        Raises:
            ConfigurationError: lists all that is wrong with the options.
        """

    def schema(self) -> StructType:
        """Spark asks for it when it is to read."""
        raise PenstockError(
            f"{self.name()} writes tables and does not read them. Read them with {self.readers}."
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        with gc_paused():
            sink = self.sink()
            from .planning import plan_stream_batch
        plan = None
        if self._plans:
            plan = plan_stream_batch(sink, schema, overwrite)
            release_caches()
        if hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"):
            from .arrow_stream_writer import ArrowStreamWriter

            return ArrowStreamWriter(sink, plan)
        from .row_stream_writer import RowStreamWriter

        return RowStreamWriter(sink, plan, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .batch_writer import BatchWriter

        with gc_paused():
            sink = self.sink()
        return BatchWriter(sink, schema, overwrite)
