"""The data source `penstock.iceberg`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import IcebergSink


class IcebergDataSource(PenstockDataSource):
    """Iceberg tables, by their name in a catalog. See `PenstockDataSource`."""

    format = "penstock.iceberg"

    def sink(self) -> IcebergSink:
        from .options import IcebergOptions
        from .sink import IcebergSink

        return IcebergSink(IcebergOptions.parse(self.options))
