"""The data source `penstock.delta`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.table_source import TableDataSource

if TYPE_CHECKING:
    from .sink import DeltaSink


class DeltaDataSource(TableDataSource):
    """Delta tables, by their path. See `TableDataSource`."""

    format = "penstock.delta"

    def sink(self) -> DeltaSink:
        from .options import DeltaOptions
        from .sink import DeltaSink

        return DeltaSink(DeltaOptions.parse(self.options))
