"""The data source `penstock.iceberg`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.table_source import TableDataSource

if TYPE_CHECKING:
    from .sink import IcebergSink


class IcebergDataSource(TableDataSource):
    """Iceberg tables, by their name in a catalog. See `TableDataSource`."""

    format = "penstock.iceberg"

    def sink(self) -> IcebergSink:
        from .options import IcebergOptions
        from .sink import IcebergSink

        return IcebergSink(IcebergOptions.parse(self.options))
