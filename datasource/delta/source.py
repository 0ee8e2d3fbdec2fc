"""The data source `penstock.delta`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import DeltaSink


class DeltaDataSource(PenstockDataSource):
    """Delta tables, by their path. See `PenstockDataSource`."""

    format = "penstock.delta"

    def sink(self) -> DeltaSink:
        from .options import DeltaOptions
        from .sink import DeltaSink

        return DeltaSink(DeltaOptions.parse(self.options))
