"""The data source `penstock.clickhouse`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import ClickHouseSink


class ClickHouseDataSource(PenstockDataSource):
    """MergeTree tables of a ClickHouse server. See `PenstockDataSource`."""

    format = "penstock.clickhouse"
    readers = "ClickHouse"

    def sink(self) -> ClickHouseSink:
        from .options import ClickHouseOptions
        from .sink import ClickHouseSink

        return ClickHouseSink(ClickHouseOptions.parse(self.options))
