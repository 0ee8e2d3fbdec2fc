"""The data source `penstock.postgres`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..spark.table_source import TableDataSource

if TYPE_CHECKING:
    from .sink import PostgresSink


class PostgresDataSource(TableDataSource):
    """Tables in a Postgres database. See `TableDataSource`."""

    format = "penstock.postgres"

    def sink(self) -> PostgresSink:
        from .options import PostgresOptions, require_driver

        require_driver()
        from .sink import PostgresSink

        return PostgresSink(PostgresOptions.parse(self.options))
