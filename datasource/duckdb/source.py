"""The data source `penstock.duckdb`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import DuckDbSink


class DuckDbDataSource(PenstockDataSource):
    """Tables in the file of a DuckDB database. See `PenstockDataSource`."""

    format = "penstock.duckdb"
    readers = "duckdb"

    def sink(self) -> DuckDbSink:
        from .options import DuckDbOptions, require_duckdb

        require_duckdb()
        from .sink import DuckDbSink

        return DuckDbSink(DuckDbOptions.parse(self.options))
