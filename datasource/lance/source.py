"""The data source `penstock.lance`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.table_source import TableDataSource

if TYPE_CHECKING:
    from .sink import LanceSink


class LanceDataSource(TableDataSource):
    """Lance tables, by their path. See `TableDataSource`."""

    format = "penstock.lance"

    def sink(self) -> LanceSink:
        from .options import LanceOptions

        options = LanceOptions.parse(self.options)
        from .sink import LanceSink

        return LanceSink(options)
