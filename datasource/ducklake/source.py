"""The data source `penstock.ducklake`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import DuckLakeSink


class DuckLakeDataSource(PenstockDataSource):
    """Tables of a DuckLake. See `PenstockDataSource`."""

    format = "penstock.ducklake"
    readers = "duckdb"

    def sink(self) -> DuckLakeSink:
        from .options import DuckLakeOptions, require_duckdb

        require_duckdb()
        from .sink import DuckLakeSink

        return DuckLakeSink(DuckLakeOptions.parse(self.options))
