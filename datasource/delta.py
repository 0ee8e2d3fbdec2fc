"""The data source `penstock.delta`. Kept tiny: Spark loads it into a fresh worker again and again."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import pyspark.sql.datasource
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
        from .options import DeltaOptions

        options, plan = DeltaOptions.parse(self.options), None
        if self._plans:
            from .planning import plan_stream_batch

            plan = plan_stream_batch(options, schema, overwrite)
        if hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter"):
            from .arrow_stream_writer import DeltaStreamArrowWriter

            return DeltaStreamArrowWriter(options, plan)
        from .row_stream_writer import DeltaStreamRowWriter

        return DeltaStreamRowWriter(options, plan, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .batch_writer import DeltaBatchWriter

        return DeltaBatchWriter(self.options, schema, overwrite)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "_plans": False}
