"""The data source `penstock.postgres`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.base_source import PenstockDataSource

if TYPE_CHECKING:
    from .sink import PostgresSink


class PostgresDataSource(PenstockDataSource):
    """Tables in a Postgres database. See `PenstockDataSource`."""

    format = "penstock.postgres"
    readers = "SQL, or from Spark with spark.read.jdbc"

    def sink(self) -> PostgresSink:
        from .options import PostgresOptions, require_driver

        require_driver()
        from .sink import PostgresSink

        return PostgresSink(PostgresOptions.parse(self.options))
