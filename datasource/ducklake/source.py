"""The data source `penstock.ducklake`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.table_source import TableDataSource

if TYPE_CHECKING:
    from .sink import DuckLakeSink


class DuckLakeDataSource(TableDataSource):
    """Tables of a DuckLake. See `TableDataSource`."""

    format = "penstock.ducklake"

    def sink(self) -> DuckLakeSink:
        from .options import DuckLakeOptions, require_duckdb

        require_duckdb()
        from .sink import DuckLakeSink

        return DuckLakeSink(DuckLakeOptions.parse(self.options))
