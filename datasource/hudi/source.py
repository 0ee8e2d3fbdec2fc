"""The data source `penstock.hudi`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.table_source import TableDataSource

if TYPE_CHECKING:
    from .sink import HudiSink


class HudiDataSource(TableDataSource):
    """Hudi tables, by their path. See `TableDataSource`."""

    format = "penstock.hudi"

    def sink(self) -> HudiSink:
        from .options import HudiOptions
        from .sink import HudiSink

        return HudiSink(HudiOptions.parse(self.options))
