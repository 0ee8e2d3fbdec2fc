"""The data source `penstock.sql`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import SqlSink


class SqlDataSource(PenstockDataSource):
    """Tables in a database that SQLAlchemy reaches. See `PenstockDataSource`."""

    format = "penstock.sql"
    readers = "SQL"

    def sink(self) -> SqlSink:
        from .options import SqlOptions
        from .sink import SqlSink

        return SqlSink(SqlOptions.parse(self.options))
