"""The data source `penstock.mysql`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import MySqlSink


class MySqlDataSource(PenstockDataSource):
    """Tables in a MySQL or MariaDB database. See `PenstockDataSource`."""

    format = "penstock.mysql"
    readers = "SQL, or from Spark with spark.read.jdbc"

    def sink(self) -> MySqlSink:
        from .options import MySqlOptions, require_driver

        require_driver()
        from .sink import MySqlSink

        return MySqlSink(MySqlOptions.parse(self.options))
