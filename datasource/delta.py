"""The data source `penstock.delta`. Kept tiny: Spark loads it into a fresh worker again and again."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class DeltaDataSource(DataSource):
    """Writes streams and batches into Delta tables, exactly once per (query, batch).

    Spark makes one for every micro-batch in a planner process on the driver, asks it for a writer and
    sends that to the executors. To commit, it makes another, *pickles* it and asks the copy for a second
    writer. So a writer from a source that was never pickled plans its batch; one from a copy commits.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options
        self._plans = True

    @classmethod
    def name(cls) -> str:
        return "penstock.delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from .stream_writer import delta_stream_writer

        return delta_stream_writer(self.options, schema, overwrite, plans=self._plans)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .batch_writer import DeltaBatchWriter

        return DeltaBatchWriter(self.options, schema, overwrite)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_plans": False}
