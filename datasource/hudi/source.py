"""The data source `penstock.hudi`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import HudiSink


class HudiDataSource(PenstockDataSource):
    """Hudi tables, by their path. See `PenstockDataSource`."""

    format = "penstock.hudi"
    readers = "a reader of the format, such as Hudi's Spark bundle, Trino or the package hudi"

    def sink(self) -> HudiSink:
        from .options import HudiOptions
        from .sink import HudiSink

        return HudiSink(HudiOptions.parse(self.options))
