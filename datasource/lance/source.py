"""The data source `penstock.lance`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import LanceSink


class LanceDataSource(PenstockDataSource):
    """Lance tables, by their path. See `PenstockDataSource`."""

    format = "penstock.lance"
    readers = "lance.dataset, LanceDB, or from Spark with the connector of Lance"

    def sink(self) -> LanceSink:
        from .options import LanceOptions

        options = LanceOptions.parse(self.options)
        from .sink import LanceSink

        return LanceSink(options)
